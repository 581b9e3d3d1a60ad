#include "backends/nccl/rounds.h"

#include <gtest/gtest.h>

namespace tfc {
namespace {

RoundEntry Entry(const std::string& key, uint64_t signature, const std::string& blob = "") {
  return RoundEntry{key, signature, "view " + std::to_string(signature), blob};
}

TEST(RoundTableTest, TheLastRankBringsTheVerdict) {
  RoundTable table(3);
  EXPECT_FALSE(table.Arrive(2, Entry("a", 7, "two")));
  EXPECT_FALSE(table.Arrive(0, Entry("a", 7, "zero")));
  EXPECT_EQ(table.Missing("a"), std::vector<int>{1});
  const auto verdict = table.Arrive(1, Entry("a", 7, "one"));
  ASSERT_TRUE(verdict);
  EXPECT_TRUE(verdict->refusal.ok());
  EXPECT_EQ(verdict->blobs, (std::vector<std::string>{"zero", "one", "two"}));
  EXPECT_TRUE(table.Missing("a").empty());
}

TEST(RoundTableTest, RanksThatAskForDifferentThingsAreShown) {
  RoundTable table(2);
  table.Arrive(0, Entry("a", 1));
  const auto verdict = table.Arrive(1, Entry("a", 2));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->refusal.code(), Code::kMismatch);
  EXPECT_NE(verdict->refusal.message().find("rank 0: view 1"), std::string::npos) << verdict->refusal.message();
  EXPECT_NE(verdict->refusal.message().find("rank 1: view 2"), std::string::npos) << verdict->refusal.message();
}

TEST(RoundTableTest, ANameCanBeUsedAgainBeforeAllHaveUsedIt) {
  RoundTable table(2);
  EXPECT_FALSE(table.Arrive(0, Entry("a", 1)));
  EXPECT_FALSE(table.Arrive(0, Entry("a", 2)));
  EXPECT_TRUE(table.Arrive(1, Entry("a", 1))->refusal.ok());
  EXPECT_TRUE(table.Arrive(1, Entry("a", 2))->refusal.ok());
}

TEST(RoundTableTest, WhoHasLeftIsNotWaitedFor) {
  RoundTable table(2);
  table.Arrive(0, Entry("a", 1));
  const Status gone = table.Leave(1);
  EXPECT_EQ(gone.code(), Code::kPeerLost);
  EXPECT_EQ(gone.peer(), 1);
  RoundTable other(2);
  EXPECT_TRUE(other.Leave(1).ok());
  other.Arrive(0, Entry("b", 1));
  EXPECT_EQ(other.Deserted("b").peer(), 1);
}

TEST(RoundTableTest, WhoLeavesAfterItHasComeIsNotMissed) {
  RoundTable table(3);
  table.Arrive(1, Entry("a", 1));
  EXPECT_TRUE(table.Leave(1).ok());
  table.Arrive(0, Entry("a", 1));
  EXPECT_TRUE(table.Deserted("a").ok());
  EXPECT_TRUE(table.Arrive(2, Entry("a", 1)));
  table.Arrive(0, Entry("a", 1));
  EXPECT_EQ(table.Deserted("a").peer(), 1);
}

// Rank 0 asks at each arrival: over all of them, it may look at each rank a few times only.
size_t LooksWhileAllArrive(int size, int in_both) {
  RoundTable table(size);
  size_t looks = 0;
  for (int rank = 0; rank + 1 < size; ++rank) {
    table.Arrive((rank + in_both) % size, Entry("a", 1));
    EXPECT_TRUE(table.AnyWaits("a", [&](int other) { return ++looks, other == in_both; }));
  }
  return looks;
}

TEST(RoundTableTest, LookingForARankCostsNoMoreWithMoreRanks) {
  for (const int size : {64, 256, 1024})
    for (const int in_both : {0, size / 2, size - 1})
      EXPECT_LE(LooksWhileAllArrive(size, in_both), static_cast<size_t>(3 * size)) << in_both;
  RoundTable table(2);
  EXPECT_FALSE(table.AnyWaits("a", [](int) { return true; }));
  table.Arrive(0, Entry("a", 1));
  EXPECT_FALSE(table.AnyWaits("a", [](int rank) { return rank == 1; }));
}

TEST(RoundTableTest, NobodyIsMissedInWhatIsClosed) {
  RoundTable table(2);
  table.Arrive(0, Entry("#1", 1));
  table.Arrive(0, Entry("=name", 1));
  table.Close('#');
  EXPECT_TRUE(table.Missing("#1").empty());
  EXPECT_FALSE(table.Arrive(0, Entry("#2", 1)));
  EXPECT_TRUE(table.Deserted("#2").ok());
  EXPECT_EQ(table.Leave(1).peer(), 1);  // of the other one
}

TEST(NotesTest, SurviveTheWire) {
  Note note;
  ASSERT_TRUE(DecodeNote(EncodeEntry(Entry("k", 9, "blob")), 2, &note).ok());
  EXPECT_EQ(note.kind, Note::Kind::kEntry);
  EXPECT_EQ(note.entry.key, "k");
  EXPECT_EQ(note.entry.signature, 9u);
  EXPECT_EQ(note.entry.blob, "blob");
  ASSERT_TRUE(DecodeNote(EncodeVerdict(RoundVerdict{"k", Status::Ok(), {"x", "y"}}), 2, &note).ok());
  EXPECT_EQ(note.verdict.blobs, (std::vector<std::string>{"x", "y"}));
  const std::string none = EncodeVerdict(RoundVerdict{"k", Status::Ok(), std::vector<std::string>(1000)});
  EXPECT_LT(none.size(), 100u) << "every rank gets it";
  ASSERT_TRUE(DecodeNote(none, 1000, &note).ok());
  EXPECT_EQ(note.verdict.blobs, std::vector<std::string>(1000));
  ASSERT_TRUE(DecodeNote(EncodeVerdict(RoundVerdict{"k", Status(Code::kMismatch, "no"), {}}), 2, &note).ok());
  EXPECT_EQ(note.verdict.refusal.code(), Code::kMismatch);
  ASSERT_TRUE(DecodeNote(EncodeOverdue("k", Status(Code::kDeadlineExceeded, "late")), 2, &note).ok());
  EXPECT_EQ(note.status.message(), "late");
  ASSERT_TRUE(DecodeNote(EncodeLeave(), 2, &note).ok());
  EXPECT_EQ(note.kind, Note::Kind::kLeave);
}

TEST(NotesTest, NonsenseIsAProtocolError) {
  Note note;
  const std::string good = EncodeEntry(Entry("key", 1, "blob"));
  for (size_t length = 0; length < good.size(); ++length)
    EXPECT_EQ(DecodeNote(good.substr(0, length), 2, &note).code(), Code::kProtocol) << length;
  EXPECT_EQ(DecodeNote(std::string(1, '\x09'), 2, &note).code(), Code::kProtocol);
}

}  // namespace
}  // namespace tfc
