// One collective as a value: what is asked for, on which memory.
#ifndef TFCOLLECTIVE_COMMUNICATOR_OPERATION_H_
#define TFCOLLECTIVE_COMMUNICATOR_OPERATION_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/span.h"
#include "base/status.h"
#include "collectives/reduce/reduction.h"

namespace tfc {

enum class Collective : int {
  kAllReduce = 0,
  kReduceScatter = 1,
  kAllGather = 2,
  kBroadcast = 3,
  kAllToAll = 4,
  kBarrier = 5,
};

const char* CollectiveName(Collective collective);

// Gives the memory for a result once the rows that each rank contributes are known; nullptr: none left.
using Allocate = std::function<std::byte*(const std::vector<int64_t>& rows)>;

// How many ranks have contributed to a sum, when it is complete. An average of integers is divided then, because the
// remainder that a division drops cannot be given back.
class Contributors {
 public:
  virtual ~Contributors() = default;
  virtual int Count(uint32_t channel, uint64_t sequence) const = 0;
};

struct Operation {
  Collective collective = Collective::kBarrier;
  Dtype dtype = Dtype::kFloat32;
  Op op = Op::kSum;
  int root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  double timeout_s = 0.0;    // 0: the engine fills in its own
  int contributors = 0;      // of an average: how many ranks it is of; 0: all
  int64_t submitted_ns = 0;  // on the monotonic clock; 0: not recorded
  std::string name;
  std::string label;            // for people; may differ from rank to rank
  uint64_t step = 0;            // of gradients: of which step of their plan, from 1; for people
  std::vector<int64_t> shape;   // of the input; empty where only the count matters
  std::vector<int64_t> splits;  // all-to-all: rows for each rank
  ConstSpans input;
  MutableSpans output;
  Allocate allocate;
  const Contributors* late_contributors = nullptr;  // of an average of integers; nullptr: all ranks contribute

  // Checks what one rank can check alone.
  Status Check(int world_size) const;
  // The reduction that `size` ranks compute.
  Reduction ReductionFor(int size) const;
  bool AveragesIntegers() const { return op == Op::kAverage && !IsFloating(dtype); }
  int64_t rows() const { return shape.empty() ? 0 : shape[0]; }
  // Bytes of one row: everything behind the first dimension.
  size_t RowBytes() const;

  // Equal on all ranks exactly when the ranks ask for the same thing.
  uint64_t Signature() const;
  // For people: "allreduce 'dense/kernel' float32[3,4] sum".
  std::string Describe() const;
  // "allreduce 'dense/kernel'"; "gradients of step 17 (allreduce 'optimizer/bucket 0')".
  std::string Title() const;
};

// First and past-the-last row of each rank when `rows` rows are dealt out: the first rows % size
// ranks get one more. size + 1 entries.
std::vector<int64_t> DealRows(int64_t rows, int size);

}  // namespace tfc

#endif  // TFCOLLECTIVE_COMMUNICATOR_OPERATION_H_
