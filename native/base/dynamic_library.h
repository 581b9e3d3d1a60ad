// Libraries that are looked up while the program runs: what is optional is loaded, never linked.
#ifndef TFCOLLECTIVE_BASE_DYNAMIC_LIBRARY_H_
#define TFCOLLECTIVE_BASE_DYNAMIC_LIBRARY_H_

#include <string>
#include <utility>

#include "base/status.h"

namespace tfc {

// A loaded library. It stays loaded: the CUDA driver and NCCL have threads that outlive their users.
class DynamicLibrary {
 public:
  // UNIMPLEMENTED with the loader's own words where it does not load.
  static Result<DynamicLibrary> Open(const std::string& name);
  // The copy that something else in this process has loaded under this name; UNIMPLEMENTED if there is none.
  static Result<DynamicLibrary> FindLoaded(const std::string& name);

  // nullptr where it has no such symbol.
  void* Find(const char* symbol) const;
  // The file, as the loader knows it; the name it was asked for where the loader does not say.
  const std::string& path() const { return path_; }

 private:
  DynamicLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  static Result<DynamicLibrary> Load(const std::string& name, int flags);

  void* handle_;
  std::string path_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_DYNAMIC_LIBRARY_H_
