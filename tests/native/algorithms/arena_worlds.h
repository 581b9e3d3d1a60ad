// Runs one function on every local rank of an arena, the ranks being threads.
#ifndef TFCOLLECTIVE_TESTS_NATIVE_ALGORITHMS_ARENA_WORLDS_H_
#define TFCOLLECTIVE_TESTS_NATIVE_ALGORITHMS_ARENA_WORLDS_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "collectives/algorithms/arena_algorithms.h"
#include "collectives/shm/arena.h"

namespace tfc {

// One local rank: its arena, its waiter and its count of operations.
class ArenaRank {
 public:
  ArenaRank(std::unique_ptr<Arena> arena, uint32_t channel, int spin_us)
      : arena_(std::move(arena)),
        channel_(channel),
        waiter_(arena_->MakeWaiter(channel == 0 ? Arena::Sleeper::kCaller : Arena::Sleeper::kProgress, spin_us)) {}

  Arena& arena() { return *arena_; }
  int rank() const { return arena_->shape().local_rank; }
  int size() const { return arena_->shape().local_size; }
  uint64_t sequence() const { return sequence_; }

  // The context of the next operation. Only a broken algorithm waits as long as the default.
  ArenaContext Next(uint64_t signature = 7, double timeout = 60.0) {
    return ArenaContext{*arena_, *waiter_, Deadline::After(timeout), channel_, &round_, sequence_++, signature};
  }

 private:
  std::unique_ptr<Arena> arena_;
  uint32_t channel_;
  std::unique_ptr<Waiter> waiter_;
  uint64_t round_ = 0;
  uint64_t sequence_ = 0;
};

struct ArenaWorld {
  int size = 2;
  uint32_t channel = 0;
  int spin_us = 0;
  // Each rank has a mapping of its own, as processes have; else all share one, so that a thread
  // sanitizer sees what they do to it.
  bool own_mappings = false;
  bool crowded = false;
};

inline std::unique_ptr<Arena> MakeRankArena(const ArenaWorld& world, const Arena& leader, int rank) {
  ArenaShape shape = leader.shape();
  shape.local_rank = rank;
  auto arena = world.own_mappings ? Arena::Attach(shape, UniqueFd(dup(leader.fd()))) : Arena::Share(leader, rank);
  EXPECT_TRUE(arena.ok()) << arena.status().message();
  return arena.Take();
}

inline void OnEveryArenaRank(const ArenaWorld& world, const std::function<void(ArenaRank&)>& body) {
  auto leader = Arena::Create(ArenaShape{0, world.size, world.channel + 1, world.crowded});
  ASSERT_TRUE(leader.ok()) << leader.status().message();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world.size; ++rank) {
    threads.emplace_back([&, rank] {
      ArenaRank self(MakeRankArena(world, *leader.value(), rank), world.channel, world.spin_us);
      body(self);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tfc

#endif  // TFCOLLECTIVE_TESTS_NATIVE_ALGORITHMS_ARENA_WORLDS_H_
