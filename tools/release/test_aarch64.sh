#!/usr/bin/env bash
# `make test-native-aarch64`: the compiler and the toolchain file of `make release`, for a processor that is emulated.
set -euo pipefail
cd "$(dirname "$0")/../.."
export TFC_RELEASE_MACHINE=aarch64
command -v qemu-aarch64-static >/dev/null || { echo "error: install qemu-aarch64-static (apt-get install qemu-user-static)" >&2; exit 1; }

# The C library of an aarch64 Debian, unpacked and not installed.
libc=$PWD/build/aarch64-libc
if [ ! -e "$libc" ]; then
  rm -rf "$libc.part" && mkdir -p "$libc.part" && chmod 777 "$libc.part"
  (cd "$libc.part" && apt-get download --quiet libc6-arm64-cross && dpkg -x libc6-arm64-cross*.deb . && rm libc6-arm64-cross*.deb)
  mv "$libc.part" "$libc"
fi
# They make system calls fail with seccomp, which the emulator does not have, or read TCP_INFO, of which it gives 4 bytes.
not_emulated='ArenaMemoryTest.(ARefused|TooLittle|AChannelThat|AFileSystem)|TroubleTest.(Where|SharedMemoryThatRuns|WithoutMemory)|AckWatchTest.AHostThatIsCutOffIsSilent'
exec tools/test_native.sh build/aarch64 dev --toolchain "$PWD/tools/release/zig.cmake" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
  "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64-static;-L;$libc/usr/aarch64-linux-gnu" -- -E "$not_emulated"
