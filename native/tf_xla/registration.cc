// Makes the calls known to the XLA of the TensorFlow in this process.
#include <dlfcn.h>

#include <string>

#include "tf_common/canonical_codes.h"
#include "tf_common/communicator.h"
#include "tf_xla/calls.h"
#include "tfcollective/tfcollective.h"

namespace tfc_tf::xla {
namespace {

constexpr char kName[] = "tfcollective";
constexpr char kPlatform[] = "Host";

Error* Handle(CallFrame* frame) {
  for (Extension* extension = frame->extensions; extension != nullptr; extension = extension->next) {
    if (extension->type != kMetadataExtension) continue;
    // XLA asks which version the handler was compiled for; there is nothing to run.
    Metadata* metadata = reinterpret_cast<MetadataExtension*>(extension)->metadata;
    metadata->api_version.major_version = kMajorVersion;
    metadata->api_version.minor_version = kMinorVersion;
    metadata->traits = 0;
    return nullptr;
  }
  tfc_error error = EmptyError();
  const tfc_code code = RunCall(*frame, &error);
  if (code == TFC_OK) return nullptr;
  const std::string message = std::string(tfc_code_name(code)) + ": " + error.message;
  ErrorArguments arguments{sizeof(arguments), nullptr, message.c_str(), CanonicalCodeOf(code)};
  return frame->api->create_error(&arguments);
}

std::string MessageOf(const Api& api, Error* error) {
  ErrorMessageArguments arguments{sizeof(arguments), nullptr, error, nullptr};
  api.get_message(&arguments);
  return arguments.message;
}

std::string Register() {
  void* library = ::dlopen("libtensorflow_cc.so.2", RTLD_NOLOAD | RTLD_LAZY);
  using GetApi = const Api* (*)();
  const auto get =
      library == nullptr ? nullptr : reinterpret_cast<GetApi>(::dlsym(library, "_ZN3xla3ffi12GetXlaFfiApiEv"));
  if (get == nullptr) return "this TensorFlow does not let other libraries add calls to compiled programs";
  const Api& api = *get();
  if (api.version.major_version != kMajorVersion || api.version.minor_version < kMinorVersion)
    return "XLA's FFI has version " + std::to_string(api.version.major_version) + "." +
           std::to_string(api.version.minor_version) + ", and not 0.2 or later";
  RegisterArguments arguments{};
  arguments.struct_size = sizeof(arguments);
  arguments.name = {kName, sizeof(kName) - 1};
  arguments.platform = {kPlatform, sizeof(kPlatform) - 1};
  arguments.execute = &Handle;
  Error* const error = api.register_handler(&arguments);
  return error == nullptr ? "" : "XLA refuses the calls: " + MessageOf(api, error);
}

}  // namespace
}  // namespace tfc_tf::xla

// Empty once compiled programs can call collectives, else the reason why they cannot. Static storage. Registers the
// calls the first time; TensorFlow must be loaded.
extern "C" TFC_EXPORT const char* tfc_xla_problem(void) {
  static const auto* const problem = new std::string(tfc_tf::xla::Register());
  return problem->c_str();
}
