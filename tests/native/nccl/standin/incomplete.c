/* A library that calls itself NCCL 2.27.3 and has nothing of it. */
__attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = 22703;
  return 0;
}
