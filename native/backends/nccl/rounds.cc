#include "backends/nccl/rounds.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "agreement/negotiation.h"
#include "control/wire.h"

namespace tfc {

std::vector<int> RoundTable::MissingIn(const Round& round) const {
  std::vector<int> missing;
  for (int rank = 0; rank < world_size_; ++rank)
    if (round.entries.count(rank) == 0) missing.push_back(rank);
  return missing;
}

RoundVerdict RoundTable::Decide(const std::string& key, const Round& round) const {
  RoundVerdict verdict;
  verdict.key = key;
  const auto& entries = round.entries;
  const uint64_t signature = entries.begin()->second.signature;
  const bool agree =
      std::all_of(entries.begin(), entries.end(), [&](const auto& one) { return one.second.signature == signature; });
  if (agree) {
    for (const auto& [rank, entry] : entries) verdict.blobs.push_back(entry.blob);
    return verdict;
  }
  std::map<int, std::string> views;
  for (const auto& [rank, entry] : entries) views[rank] = entry.view;
  verdict.refusal = Status(Code::kMismatch, "the ranks do not agree on a GPU operation: " + CompareViews(views));
  return verdict;
}

std::optional<RoundVerdict> RoundTable::Arrive(int rank, RoundEntry entry) {
  const std::string key = entry.key;
  if (!key.empty() && closed_.count(key[0]) != 0) return std::nullopt;
  auto& queue = rounds_[key];
  auto round = std::find_if(queue.begin(), queue.end(), [&](const Round& one) { return one.entries.count(rank) == 0; });
  if (round == queue.end()) round = queue.insert(queue.end(), Round());
  round->entries.emplace(rank, std::move(entry));
  round->left += left_.count(rank);
  if (static_cast<int>(round->entries.size()) < world_size_) return std::nullopt;
  RoundVerdict verdict = Decide(key, *round);
  queue.erase(round);
  if (queue.empty()) rounds_.erase(key);
  return verdict;
}

void RoundTable::Close(char prefix) {
  closed_.insert(prefix);
  for (auto round = rounds_.begin(); round != rounds_.end();)
    round = !round->first.empty() && round->first[0] == prefix ? rounds_.erase(round) : std::next(round);
}

// Of the ranks that have left, those that are in the round are counted: usually that is the answer.
Status RoundTable::DesertedIn(const std::string& key, const Round& round) const {
  if (round.left == left_.size()) return Status::Ok();
  for (const int rank : MissingIn(round)) {
    if (left_.count(rank) == 0) continue;
    return Status(Code::kPeerLost, "rank " + std::to_string(rank) + " has left and is missing in '" + key + "' on GPUs",
                  rank);
  }
  return Status::Ok();
}

Status RoundTable::Leave(int rank) {
  if (!left_.insert(rank).second) return Status::Ok();
  for (auto& [key, queue] : rounds_)
    for (Round& round : queue) round.left += round.entries.count(rank);
  for (const auto& [key, queue] : rounds_)
    TFC_RETURN_IF_ERROR(DesertedIn(queue.front().entries.begin()->second.view, queue.front()));
  return Status::Ok();
}

Status RoundTable::Deserted(const std::string& key) const {
  const auto found = rounds_.find(key);
  if (found == rounds_.end()) return Status::Ok();
  return DesertedIn(found->second.front().entries.begin()->second.view, found->second.front());
}

std::map<int, std::string> RoundTable::Views(const std::string& key) const {
  std::map<int, std::string> views;
  const auto found = rounds_.find(key);
  if (found == rounds_.end()) return views;
  for (const auto& [rank, entry] : found->second.front().entries) views[rank] = entry.view;
  return views;
}

std::vector<int> RoundTable::Missing(const std::string& key) const {
  const auto found = rounds_.find(key);
  return found == rounds_.end() ? std::vector<int>() : MissingIn(found->second.front());
}

namespace {

WireWriter Begin(Note::Kind kind) {
  WireWriter writer;
  writer.Number(static_cast<uint8_t>(kind));
  return writer;
}

}  // namespace

std::string EncodeEntry(const RoundEntry& entry) {
  return Begin(Note::Kind::kEntry).Text(entry.key).Number(entry.signature).Text(entry.view).Text(entry.blob).Take();
}

std::string EncodeVerdict(const RoundVerdict& verdict) {
  WireWriter writer = Begin(Note::Kind::kVerdict);
  writer.Text(verdict.key).Error(verdict.refusal);
  if (!verdict.refusal.ok()) return writer.Take();
  // Most calls have none, and every rank gets this message.
  const bool all_empty =
      std::all_of(verdict.blobs.begin(), verdict.blobs.end(), [](const std::string& blob) { return blob.empty(); });
  writer.Number(static_cast<uint8_t>(!all_empty));
  if (all_empty) return writer.Take();
  for (const std::string& blob : verdict.blobs) writer.Text(blob);
  return writer.Take();
}

std::string EncodeLeave() { return Begin(Note::Kind::kLeave).Take(); }

std::string EncodeOverdue(const std::string& key, const Status& status) {
  return Begin(Note::Kind::kOverdue).Text(key).Error(status).Take();
}

Status DecodeNote(const std::string& bytes, int world_size, Note* note) {
  WireReader reader(bytes);
  const auto kind = reader.Number<uint8_t>();
  if (kind < static_cast<uint8_t>(Note::Kind::kEntry) || kind > static_cast<uint8_t>(Note::Kind::kOverdue))
    return Status(Code::kProtocol, "malformed control message: a note of no known kind");
  note->kind = static_cast<Note::Kind>(kind);
  if (note->kind == Note::Kind::kEntry) {
    note->entry.key = reader.Text();
    note->entry.signature = reader.Number<uint64_t>();
    note->entry.view = reader.Text();
    note->entry.blob = reader.Text();
  } else if (note->kind == Note::Kind::kVerdict) {
    note->verdict.key = reader.Text();
    note->verdict.refusal = reader.Error();
    note->verdict.blobs.clear();
    const bool with_blobs = note->verdict.refusal.ok() && reader.Number<uint8_t>() != 0;
    if (note->verdict.refusal.ok() && reader.ok())
      for (int rank = 0; rank < world_size; ++rank)
        note->verdict.blobs.push_back(with_blobs ? reader.Text() : std::string());
  } else if (note->kind == Note::Kind::kOverdue) {
    note->entry.key = reader.Text();
    note->status = reader.Error();
  }
  return reader.Finish("a note about GPUs");
}

}  // namespace tfc
