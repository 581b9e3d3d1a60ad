#include "collectives/reduce/kernels.h"

namespace tfc {

std::vector<const KernelTable*> UsableKernels() {
  std::vector<const KernelTable*> tables;
  for (const KernelTable* table : {BaselineKernels(), NeonKernels(), Avx2Kernels(), Avx512Kernels()}) {
    if (table != nullptr) tables.push_back(table);
  }
  return tables;
}

}  // namespace tfc
