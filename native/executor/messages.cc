#include "executor/messages.h"

#include <map>
#include <vector>

#include "control/wire.h"

namespace tfc {
namespace {

void Write(WireWriter* writer, const Progress& progress) {
  writer->Number(static_cast<uint32_t>(progress.size()));
  for (const auto& [channel, count] : progress) writer->Number(channel).Number(count);
}

void Read(WireReader* reader, Progress* progress) {
  const auto entries = reader->Number<uint32_t>();
  for (uint32_t i = 0; i < entries && reader->ok(); ++i) {
    const auto channel = reader->Number<uint32_t>();
    (*progress)[channel] = reader->Number<uint64_t>();
  }
}

void Write(WireWriter* writer, const Place& place) { writer->Number(place.channel).Number(place.sequence); }

void Read(WireReader* reader, Place* place) {
  place->channel = reader->Number<uint32_t>();
  place->sequence = reader->Number<uint64_t>();
}

}  // namespace

std::string Encode(const Go& go) {
  WireWriter writer;
  writer.Number(static_cast<uint8_t>(go.probe)).Error(go.objection);
  return writer.Take();
}

Status Decode(const std::string& bytes, Go* go) {
  WireReader reader(bytes);
  go->probe = reader.Number<uint8_t>() != 0;
  go->objection = reader.Error();
  return reader.Finish("go");
}

std::string Encode(const Status& status) { return WireWriter().Error(status).Take(); }

Status Decode(const std::string& bytes, Status* status) {
  WireReader reader(bytes);
  *status = reader.Error();
  return reader.Finish("failure");
}

std::string Encode(const Progress& progress) {
  WireWriter writer;
  Write(&writer, progress);
  return writer.Take();
}

Status Decode(const std::string& bytes, Progress* progress) {
  WireReader reader(bytes);
  Read(&reader, progress);
  return reader.Finish("progress");
}

std::string Encode(const ZeroContribution& contribution) {
  const Operation& operation = contribution.operation;
  WireWriter writer;
  writer.Number(contribution.channel)
      .Number(contribution.sequence)
      .Number(static_cast<int32_t>(operation.dtype))
      .Number(static_cast<int32_t>(operation.op))
      .Number(operation.prescale)
      .Number(operation.postscale)
      .Number(operation.timeout_s)
      .Text(operation.name)
      .Number(contribution.bytes)
      .Number(static_cast<uint32_t>(operation.shape.size()));
  for (int64_t dimension : operation.shape) writer.Number(dimension);
  return writer.Take();
}

Status Decode(const std::string& bytes, ZeroContribution* contribution) {
  WireReader reader(bytes);
  Operation& operation = contribution->operation;
  contribution->channel = reader.Number<uint32_t>();
  contribution->sequence = reader.Number<uint64_t>();
  operation.collective = Collective::kAllReduce;
  const auto dtype = reader.Number<int32_t>();
  const auto op = reader.Number<int32_t>();
  operation.prescale = reader.Number<double>();
  operation.postscale = reader.Number<double>();
  operation.timeout_s = reader.Number<double>();
  operation.name = reader.Text();
  contribution->bytes = reader.Number<uint64_t>();
  const auto dimensions = reader.Number<uint32_t>();
  operation.shape.clear();
  for (uint32_t i = 0; i < dimensions && reader.ok(); ++i) operation.shape.push_back(reader.Number<int64_t>());
  if (!IsDtype(dtype) || !IsOp(op)) return Status(Code::kProtocol, "malformed control message: zero contribution");
  operation.dtype = static_cast<Dtype>(dtype);
  operation.op = static_cast<Op>(op);
  return reader.Finish("zero contribution");
}

std::string EncodeChannel(uint32_t channel) {
  WireWriter writer;
  writer.Number(channel);
  return writer.Take();
}

Status DecodeChannel(const std::string& bytes, uint32_t* channel) {
  WireReader reader(bytes);
  *channel = reader.Number<uint32_t>();
  return reader.Finish("channel");
}

std::string EncodeRank(int rank) { return WireWriter().Number(static_cast<int32_t>(rank)).Take(); }

Status DecodeRank(const std::string& bytes, int* rank) {
  WireReader reader(bytes);
  *rank = reader.Number<int32_t>();
  return reader.Finish("rank");
}

std::string Encode(const Place& place) {
  WireWriter writer;
  Write(&writer, place);
  return writer.Take();
}

Status Decode(const std::string& bytes, Place* place) {
  WireReader reader(bytes);
  Read(&reader, place);
  return reader.Finish("place");
}

std::string Encode(const FailureArbiter::View& view) {
  WireWriter writer;
  Write(&writer, view.place);
  return writer.Text(view.text).Text(view.instead).Number(view.signature).Take();
}

Status Decode(const std::string& bytes, FailureArbiter::View* view) {
  WireReader reader(bytes);
  Read(&reader, &view->place);
  view->text = reader.Text();
  view->instead = reader.Text();
  view->signature = reader.Number<uint64_t>();
  return reader.Finish("view");
}

std::string Encode(const FailureArbiter::Observation& trouble) {
  WireWriter writer;
  writer.Number(static_cast<uint8_t>(trouble.event));
  Write(&writer, trouble.place);
  return writer.Error(trouble.status).Take();
}

Status Decode(const std::string& bytes, FailureArbiter::Observation* trouble) {
  WireReader reader(bytes);
  const auto event = reader.Number<uint8_t>();
  if (event > static_cast<uint8_t>(FailureArbiter::Event::kMismatch))
    return Status(Code::kProtocol, "malformed control message: trouble of no known kind");
  trouble->event = static_cast<FailureArbiter::Event>(event);
  Read(&reader, &trouble->place);
  trouble->status = reader.Error();
  return reader.Finish("trouble");
}

std::string EncodeLeft(int rank, const Progress& progress) {
  WireWriter writer;
  writer.Number(static_cast<int32_t>(rank));
  Write(&writer, progress);
  return writer.Take();
}

Status DecodeLeft(const std::string& bytes, int* rank, Progress* progress) {
  WireReader reader(bytes);
  *rank = reader.Number<int32_t>();
  Read(&reader, progress);
  return reader.Finish("departure");
}

// Most ranks have done the same when they join: each progress is written once.
std::string Encode(const Joins& joins) {
  std::map<Progress, std::vector<int32_t>> ranks_by_progress;
  for (const auto& [rank, progress] : joins) ranks_by_progress[progress].push_back(rank);
  WireWriter writer;
  writer.Number(static_cast<uint32_t>(ranks_by_progress.size()));
  for (const auto& [progress, ranks] : ranks_by_progress) {
    Write(&writer, progress);
    writer.Number(static_cast<uint32_t>(ranks.size()));
    for (const int32_t rank : ranks) writer.Number(rank);
  }
  return writer.Take();
}

Status Decode(const std::string& bytes, Joins* joins) {
  WireReader reader(bytes);
  const auto groups = reader.Number<uint32_t>();
  for (uint32_t i = 0; i < groups && reader.ok(); ++i) {
    Progress progress;
    Read(&reader, &progress);
    const auto ranks = reader.Number<uint32_t>();
    for (uint32_t j = 0; j < ranks && reader.ok(); ++j) (*joins)[reader.Number<int32_t>()] = progress;
  }
  return reader.Finish("joins");
}

std::string EncodeSeconds(double seconds) { return WireWriter().Number(seconds).Take(); }

Status DecodeSeconds(const std::string& bytes, double* seconds) {
  WireReader reader(bytes);
  *seconds = reader.Number<double>();
  return reader.Finish("seconds");
}

}  // namespace tfc
