#include "communicator/operation.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace tfc {
namespace {

bool Reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter;
}

// Only the dimensions behind the first must agree where each rank brings its own number of rows.
bool IsRagged(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kAllToAll;
}

class Hasher {
 public:
  // FNV-1a (Fowler, Noll and Vo) over words instead of bytes, with a shift so that high bits reach low
  // ones, then the final mix of MurmurHash3 (Appleby).
  template <typename T>
  void AddValue(T value) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof(value));
    hash_ = (hash_ ^ word) * 1099511628211ull;
    hash_ ^= hash_ >> 32;
  }
  void AddText(const std::string& text) {
    for (size_t i = 0; i < text.size(); i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min(sizeof(word), text.size() - i));
      AddValue(word);
    }
    AddValue(text.size());
  }
  uint64_t Finish() const {
    uint64_t mixed = hash_;
    mixed = (mixed ^ (mixed >> 33)) * 0xff51afd7ed558ccdull;
    mixed = (mixed ^ (mixed >> 33)) * 0xc4ceb9fe1a85ec53ull;
    mixed ^= mixed >> 33;
    return mixed == 0 ? 1 : mixed;  // 0 means "none" in the arena's flags
  }

 private:
  uint64_t hash_ = 14695981039346656037ull;
};

Status Invalid(const Operation& operation, const std::string& what) {
  return Status(Code::kInvalidArgument, operation.Title() + ": " + what);
}

Status CheckShape(const Operation& operation) {
  int64_t count = 1;
  for (int64_t dimension : operation.shape) {
    if (dimension < 0) return Invalid(operation, "a dimension is negative");
    if (dimension != 0 && count > std::numeric_limits<int64_t>::max() / dimension / 16)
      return Invalid(operation, "the shape has more elements than memory can hold");
    count *= dimension;
  }
  const size_t bytes = static_cast<size_t>(count) * DtypeSize(operation.dtype);
  if (bytes != TotalSize(operation.input))
    return Invalid(operation, "the shape says " + std::to_string(bytes) + " bytes but the input has " +
                                  std::to_string(TotalSize(operation.input)));
  return Status::Ok();
}

Status CheckRows(const Operation& operation, int world_size) {
  if (operation.shape.empty()) return Invalid(operation, "needs an input with at least one dimension");
  TFC_RETURN_IF_ERROR(CheckShape(operation));
  if (operation.collective == Collective::kReduceScatter) return Status::Ok();
  if (!operation.allocate) return Invalid(operation, "needs a way to allocate its result");
  if (operation.collective != Collective::kAllToAll) return Status::Ok();
  if (operation.splits.empty()) {
    if (operation.rows() % world_size == 0) return Status::Ok();
    return Invalid(operation, std::to_string(operation.rows()) + " rows cannot be split into " +
                                  std::to_string(world_size) + " equal parts; pass splits");
  }
  if (static_cast<int>(operation.splits.size()) != world_size)
    return Invalid(operation, "has " + std::to_string(operation.splits.size()) + " splits for " +
                                  std::to_string(world_size) + " ranks");
  int64_t sum = 0;
  for (int64_t split : operation.splits) {
    if (split < 0 || split > operation.rows())
      return Invalid(operation, "a split is negative or larger than the input");
    sum += split;
  }
  if (sum != operation.rows())
    return Invalid(operation, "the splits add up to " + std::to_string(sum) + " but the input has " +
                                  std::to_string(operation.rows()) + " rows");
  return Status::Ok();
}

}  // namespace

const char* CollectiveName(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "allreduce";
    case Collective::kReduceScatter:
      return "reducescatter";
    case Collective::kAllGather:
      return "allgather";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kAllToAll:
      return "alltoall";
    case Collective::kBarrier:
      return "barrier";
  }
  return "unknown";
}

Status Operation::Check(int world_size) const {
  switch (collective) {
    case Collective::kBarrier:
      return Status::Ok();
    case Collective::kBroadcast:
      if (root < 0 || root >= world_size)
        return Invalid(*this,
                       "root " + std::to_string(root) + " is not a rank of a world of " + std::to_string(world_size));
      break;
    case Collective::kAllReduce:
    case Collective::kReduceScatter:
      if (const Status reducible = CheckReduction(ReductionFor(world_size)); !reducible.ok())
        return reducible.WithContext(Title());
      break;
    case Collective::kAllGather:
    case Collective::kAllToAll:
      break;
  }
  if (IsRagged(collective)) return CheckRows(*this, world_size);
  if (collective == Collective::kReduceScatter) {
    TFC_RETURN_IF_ERROR(CheckRows(*this, world_size));
    return Status::Ok();
  }
  if (TotalSize(input) != TotalSize(output)) return Invalid(*this, "input and output differ in size");
  return Status::Ok();
}

Reduction Operation::ReductionFor(int size) const {
  Reduction reduction;
  reduction.dtype = dtype;
  reduction.op = op == Op::kAverage ? Op::kSum : op;
  reduction.prescale = prescale;
  reduction.postscale = postscale;
  reduction.divisor = op != Op::kAverage ? 1 : contributors > 0 ? contributors : size;
  return reduction;
}

size_t Operation::RowBytes() const {
  size_t bytes = DtypeSize(dtype);
  for (size_t i = 1; i < shape.size(); ++i) bytes *= static_cast<size_t>(shape[i]);
  return bytes;
}

uint64_t Operation::Signature() const {
  Hasher hasher;
  hasher.AddValue(static_cast<int>(collective));
  hasher.AddText(name);
  if (collective == Collective::kBarrier) return hasher.Finish();
  hasher.AddValue(static_cast<int>(dtype));
  if (collective == Collective::kBroadcast) hasher.AddValue(root);
  if (Reduces(collective)) {
    hasher.AddValue(static_cast<int>(op));
    hasher.AddValue(prescale);
    hasher.AddValue(postscale);
  }
  const size_t first = IsRagged(collective) ? 1 : 0;
  for (size_t i = first; i < shape.size(); ++i) hasher.AddValue(shape[i]);
  hasher.AddValue(shape.size());
  if (!IsRagged(collective)) hasher.AddValue(TotalSize(input));
  return hasher.Finish();
}

std::string Operation::Title() const {
  std::string title = CollectiveName(collective);
  if (!name.empty()) title += " '" + name + "'";
  return step == 0 ? title : "gradients of step " + std::to_string(step) + " (" + title + ")";
}

std::string Operation::Describe() const {
  std::string text = Title();
  if (collective == Collective::kBarrier) return text;
  text += std::string(" ") + DtypeName(dtype) + "[";
  if (shape.empty()) {
    text += std::to_string(TotalSize(input) / DtypeSize(dtype)) + " elements";
  } else {
    for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ",") + std::to_string(shape[i]);
  }
  text += "]";
  if (Reduces(collective)) {
    text += std::string(" ") + OpName(op);
    if (prescale != 1.0) text += " prescale " + std::to_string(prescale);
    if (postscale != 1.0) text += " postscale " + std::to_string(postscale);
  }
  if (collective == Collective::kBroadcast) text += " from rank " + std::to_string(root);
  if (!label.empty()) text += " (" + label + ")";
  return text;
}

std::vector<int64_t> DealRows(int64_t rows, int size) {
  std::vector<int64_t> offsets(static_cast<size_t>(size) + 1, 0);
  for (int r = 0; r < size; ++r)
    offsets[static_cast<size_t>(r) + 1] = offsets[static_cast<size_t>(r)] + rows / size + (r < rows % size ? 1 : 0);
  return offsets;
}

}  // namespace tfc
