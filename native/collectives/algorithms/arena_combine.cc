#include "collectives/algorithms/arena_combine.h"

#include <array>
#include <vector>

#include "collectives/reduce/reduce.h"

namespace tfc {
namespace {

constexpr size_t kFewRanks = 16;  // their pointers lie on the stack: a small operation allocates nothing

// `inputs`: room for a pointer for each rank.
void Combine(const StagingRounds& rounds, const Reduction& reduction, uint64_t round, size_t begin, size_t count,
             const std::byte** inputs, const std::byte* own, std::byte* output, bool stream) {
  const size_t ranks = static_cast<size_t>(rounds.local_size());
  for (size_t i = 0; i < ranks; ++i) inputs[i] = rounds.peer_slot(static_cast<int>(i), round) + begin;
  inputs[rounds.local_rank()] = own;
  ReduceArrays(reduction, inputs, ranks, output, count, stream);
}

// `count` elements from `begin` bytes on.
void CombineElements(const StagingRounds& rounds, const Reduction& reduction, uint64_t round, size_t begin,
                     size_t count, const std::byte* own, std::byte* output, bool stream) {
  const size_t ranks = static_cast<size_t>(rounds.local_size());
  if (ranks <= kFewRanks) {
    std::array<const std::byte*, kFewRanks> inputs;
    Combine(rounds, reduction, round, begin, count, inputs.data(), own, output, stream);
  } else {
    std::vector<const std::byte*> inputs(ranks);
    Combine(rounds, reduction, round, begin, count, inputs.data(), own, output, stream);
  }
}

}  // namespace

void CombineSlots(const StagingRounds& rounds, const Reduction& reduction, const std::byte* own, std::byte* output,
                  size_t count) {
  CombineElements(rounds, reduction, 0, 0, count, own, output, false);
}

void CombineStaged(const StagingRounds& rounds, const Reduction& reduction, Lot lot, ConstCursor* own,
                   MutableCursor* output, bool stream) {
  const size_t in = reduction.input_size(), out = reduction.output_size();
  output->Visit(lot.size / in * out, [&](std::byte* to, size_t to_offset, size_t to_size) {
    own->Visit(to_size / out * in, [&](const std::byte* from, size_t from_offset, size_t size) {
      CombineElements(rounds, reduction, lot.round, lot.begin + to_offset / out * in + from_offset, size / in, from,
                      to + from_offset / in * out, stream);
    });
  });
}

}  // namespace tfc
