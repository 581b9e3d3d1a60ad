#include "base/dynamic_library.h"

#include <dlfcn.h>
#include <link.h>

#include "base/mutex.h"

namespace tfc {
namespace {

std::string PathOf(void* handle, const std::string& name) {
  link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name == nullptr) return name;
  return *map->l_name == '\0' ? name : map->l_name;
}

}  // namespace

Result<DynamicLibrary> DynamicLibrary::Load(const std::string& name, int flags) {
  // The loader has locks of its own, but its answer about a library that another thread has just loaded lies outside
  // them.
  static Mutex mutex;
  const MutexLock lock(mutex);
  ::dlerror();
  void* handle = ::dlopen(name.c_str(), flags);
  if (handle != nullptr) return DynamicLibrary(handle, PathOf(handle, name));
  const char* reason = ::dlerror();
  return Status(Code::kUnimplemented, reason == nullptr ? name + ": not loaded" : reason);
}

Result<DynamicLibrary> DynamicLibrary::Open(const std::string& name) { return Load(name, RTLD_NOW | RTLD_LOCAL); }

Result<DynamicLibrary> DynamicLibrary::FindLoaded(const std::string& name) {
  return Load(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
}

void* DynamicLibrary::Find(const char* symbol) const { return ::dlsym(handle_, symbol); }

}  // namespace tfc
