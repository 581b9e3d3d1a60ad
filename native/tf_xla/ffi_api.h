// The part of XLA's typed FFI that the calls use, declared here so that they build without TensorFlow: the layout of
// version 0.2 (xla/ffi/api/c_api.h), which later minor versions extend at the ends of the structs.
#ifndef TFCOLLECTIVE_TF_XLA_FFI_API_H_
#define TFCOLLECTIVE_TF_XLA_FFI_API_H_

#include <cstddef>
#include <cstdint>

namespace tfc_tf::xla {

inline constexpr int kMajorVersion = 0;
inline constexpr int kMinorVersion = 2;

enum DataType : int {
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kBf16 = 16,
};

struct Extension {
  size_t struct_size;
  int type;  // kMetadataExtension
  Extension* next;
};
inline constexpr int kMetadataExtension = 1;

struct Version {
  size_t struct_size;
  Extension* extensions;
  int major_version;
  int minor_version;
};

struct Metadata {
  size_t struct_size;
  Version api_version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Error;  // a status of XLA's, which owns what a handler returns

struct ErrorArguments {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  int code;  // canonical
};

struct ErrorMessageArguments {
  size_t struct_size;
  Extension* extensions;
  Error* error;
  const char* message;  // filled in
};

struct Text {
  const char* begin;
  size_t size;
};

struct Scalar {
  int dtype;
  const void* value;
};

struct Buffer {
  size_t struct_size;
  Extension* extensions;
  int dtype;
  void* data;
  int64_t rank;
  const int64_t* dimensions;
};

// Of arguments and of results: `types` holds kBuffer only.
struct Buffers {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  const int* types;
  Buffer* const* buffers;
};

inline constexpr int kScalarAttribute = 3;
inline constexpr int kTextAttribute = 4;

struct Attributes {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  const int* types;
  const Text* const* names;
  const void* const* values;
};

struct Api;

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  void* context;
  int stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
};

using Handler = Error* (*)(CallFrame* frame);

struct RegisterArguments {
  size_t struct_size;
  Extension* extensions;
  Text name;
  Text platform;
  Handler instantiate, prepare, initialize, execute;
  uint32_t traits;
};

struct Api {
  size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorArguments* arguments);
  void (*get_message)(ErrorMessageArguments* arguments);
  void (*destroy_error)(void* arguments);
  Error* (*register_handler)(RegisterArguments* arguments);
};

}  // namespace tfc_tf::xla

#endif  // TFCOLLECTIVE_TF_XLA_FFI_API_H_
