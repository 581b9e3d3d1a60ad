// The instruction sets that this processor has and its system enables.
#ifndef TFCOLLECTIVE_COLLECTIVES_REDUCE_CPU_FEATURES_H_
#define TFCOLLECTIVE_COLLECTIVES_REDUCE_CPU_FEATURES_H_

namespace tfc {

struct CpuFeatures {
  bool avx2_f16c = false;
  bool avx512 = false;  // F, DQ, BW, VL, and all of avx2_f16c
};

// All false on processors other than x86-64.
CpuFeatures ReadCpuFeatures();

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_REDUCE_CPU_FEATURES_H_
