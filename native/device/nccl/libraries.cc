#include "device/nccl/libraries.h"

#include <optional>
#include <utility>

#include "base/dynamic_library.h"

namespace tfc {
namespace {

constexpr char kCudaName[] = "libcuda.so.1";
constexpr char kNcclName[] = "libnccl.so.2";
constexpr char kNcclRemedy[] =
    ". Install the package nvidia-nccl-cu12 or nvidia-nccl-cu13, or name the file in TFCOLLECTIVE_NCCL";

template <typename Function>
bool Bind(const DynamicLibrary& library, const char* symbol, Function* function, std::string* missing) {
  *function = reinterpret_cast<Function>(library.Find(symbol));
  if (*function != nullptr) return true;
  *missing += (missing->empty() ? "" : ", ") + std::string(symbol);
  return false;
}

Status Incomplete(const DynamicLibrary& library, const std::string& missing) {
  return Status(Code::kUnimplemented, library.path() + " has no " + missing);
}

Result<std::shared_ptr<const CudaApi>> BindCuda(const DynamicLibrary& library) {
  auto api = std::make_shared<CudaApi>();
  std::string missing;
#define TFC_BIND(member, symbol, arguments) Bind(library, symbol, &api->member, &missing);
  TFC_CUDA_FUNCTIONS(TFC_BIND)
#undef TFC_BIND
  if (!missing.empty()) return Incomplete(library, missing).WithContext("the CUDA driver is too old");
  api->path = library.path();
  const CUresult up = api->cuInit(0);
  const char* text = nullptr;
  if (up != kCudaSuccess && api->cuGetErrorString(up, &text) != kCudaSuccess) text = nullptr;
  if (up != kCudaSuccess)
    return Status(Code::kDevice, api->path + ": cuInit: " + (text == nullptr ? std::to_string(up) : text));
  api->cuDriverGetVersion(&api->version);
  return std::shared_ptr<const CudaApi>(std::move(api));
}

Result<std::shared_ptr<const NcclApi>> BindNccl(const DynamicLibrary& library) {
  auto api = std::make_shared<NcclApi>();
  std::string missing;
  api->path = library.path();
  // The version first: an old library is too old, whatever else it lacks.
  if (!Bind(library, "ncclGetVersion", &api->ncclGetVersion, &missing) ||
      api->ncclGetVersion(&api->version) != kNcclSuccess)
    return Status(Code::kUnimplemented, api->path + " does not tell its version: it is no NCCL");
  if (api->version < kOldestNccl)
    return Status(Code::kUnimplemented, api->path + " is NCCL " + NcclVersionText(api->version) + ", and " +
                                            NcclVersionText(kOldestNccl) + " or newer is needed");
#define TFC_BIND(symbol, result, arguments) Bind(library, #symbol, &api->symbol, &missing);
  TFC_NCCL_FUNCTIONS(TFC_BIND)
#undef TFC_BIND
  if (!missing.empty()) return Incomplete(library, missing);
  return std::shared_ptr<const NcclApi>(std::move(api));
}

// The user's own choice: no other copy will do, and one of another version must not be in use already.
Result<std::shared_ptr<const NcclApi>> LoadChosen(const std::string& path) {
  auto library = DynamicLibrary::Open(path);
  if (!library.ok()) return library.status().WithContext("TFCOLLECTIVE_NCCL=" + path);
  auto chosen = BindNccl(library.value());
  if (!chosen.ok()) return chosen.status().WithContext("TFCOLLECTIVE_NCCL");
  auto loaded = DynamicLibrary::FindLoaded(kNcclName);
  if (!loaded.ok() || loaded.value().path() == library.value().path()) return chosen;
  auto other = BindNccl(loaded.value());
  const int version = other.ok() ? other.value()->version : 0;
  if (version == chosen.value()->version) return chosen;
  return Status(Code::kFailedPrecondition, "two versions of NCCL in one process: TFCOLLECTIVE_NCCL=" + path + " is " +
                                               NcclVersionText(chosen.value()->version) + ", but " +
                                               loaded.value().path() + " (" + NcclVersionText(version) +
                                               ") is loaded already: leave the variable away, or give both the same");
}

}  // namespace

std::string NcclVersionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Result<std::shared_ptr<const CudaApi>> LoadCuda(const DeviceOptions& options) {
  auto library = DynamicLibrary::Open(options.cuda_library.empty() ? kCudaName : options.cuda_library);
  if (!library.ok()) return library.status().WithContext("there is no CUDA driver on this host");
  return BindCuda(library.value());
}

Result<std::shared_ptr<const NcclApi>> LoadNccl(const DeviceOptions& options) {
  if (!options.nccl_library.empty()) return LoadChosen(options.nccl_library);
  // The library that this process uses already is the one to use: two versions do not go together.
  auto loaded = DynamicLibrary::FindLoaded(kNcclName);
  if (loaded.ok()) return BindNccl(loaded.value());
  std::string tried = "no copy loaded in this process";
  std::vector<std::string> names = options.nccl_candidates;
  names.emplace_back(kNcclName);
  for (const std::string& name : names) {
    auto library = DynamicLibrary::Open(name);
    if (!library.ok()) {
      tried += "; " + library.status().message();
      continue;
    }
    auto api = BindNccl(library.value());
    if (api.ok()) return api;
    tried += "; " + api.status().message();
  }
  return Status(Code::kUnimplemented, "NCCL was not found: " + tried + kNcclRemedy);
}

}  // namespace tfc
