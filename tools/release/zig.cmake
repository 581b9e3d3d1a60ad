# A CMake toolchain: Zig's clang, with the C library of manylinux_2_28, for the processor in TFC_RELEASE_MACHINE.
#
#   TFC_ZIG=.../ziglang/zig TFC_RELEASE_MACHINE=aarch64 cmake --toolchain tools/release/zig.cmake ...
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $ENV{TFC_RELEASE_MACHINE})
# The number is glibc's. Without -target, Zig would compile for the building machine's processor.
set(_target -target ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu.2.28)
set(CMAKE_C_COMPILER $ENV{TFC_ZIG} cc ${_target})
set(CMAKE_CXX_COMPILER $ENV{TFC_ZIG} c++ ${_target})
# The building machine's strip does not know other processors.
set(CMAKE_SHARED_LINKER_FLAGS_INIT -s)
set(CMAKE_MODULE_LINKER_FLAGS_INIT -s)
set(CMAKE_STRIP true)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
