#include "engine/messages.h"

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

}  // namespace

std::string Encode(const Request& request) {
  WireWriter writer;
  writer.Text(request.name)
      .Number(static_cast<uint8_t>(request.is_plan))
      .Number(request.signature)
      .Text(request.view)
      .Number(request.timeout_s);
  return writer.Take();
}

Status Decode(const std::string& bytes, Request* request) {
  WireReader reader(bytes);
  request->name = reader.Text();
  request->is_plan = reader.Number<uint8_t>() != 0;
  request->signature = reader.Number<uint64_t>();
  request->view = reader.Text();
  request->timeout_s = reader.Number<double>();
  return reader.Finish("request");
}

std::string Encode(const Verdict& verdict) {
  WireWriter writer;
  writer.Text(verdict.name)
      .Number(static_cast<uint8_t>(verdict.is_plan))
      .Number(verdict.channel)
      .Error(verdict.refusal);
  return writer.Take();
}

Status Decode(const std::string& bytes, Verdict* verdict) {
  WireReader reader(bytes);
  verdict->name = reader.Text();
  verdict->is_plan = reader.Number<uint8_t>() != 0;
  verdict->channel = reader.Number<uint32_t>();
  verdict->refusal = reader.Error();
  return reader.Finish("verdict");
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

std::string EncodePlace(uint32_t channel, uint64_t sequence) {
  return WireWriter().Number(channel).Number(sequence).Take();
}

Status DecodePlace(const std::string& bytes, uint32_t* channel, uint64_t* sequence) {
  WireReader reader(bytes);
  *channel = reader.Number<uint32_t>();
  *sequence = reader.Number<uint64_t>();
  return reader.Finish("place");
}

std::string EncodeView(uint32_t channel, uint64_t sequence, const std::string& view, const std::string& instead) {
  return WireWriter().Number(channel).Number(sequence).Text(view).Text(instead).Take();
}

Status DecodeView(const std::string& bytes, uint32_t* channel, uint64_t* sequence, std::string* view,
                  std::string* instead) {
  WireReader reader(bytes);
  *channel = reader.Number<uint32_t>();
  *sequence = reader.Number<uint64_t>();
  *view = reader.Text();
  *instead = reader.Text();
  return reader.Finish("view");
}

std::string EncodeTimeout(uint32_t channel, uint64_t sequence, const Status& status) {
  return WireWriter().Number(channel).Number(sequence).Error(status).Take();
}

Status DecodeTimeout(const std::string& bytes, uint32_t* channel, uint64_t* sequence, Status* status) {
  WireReader reader(bytes);
  *channel = reader.Number<uint32_t>();
  *sequence = reader.Number<uint64_t>();
  *status = reader.Error();
  return reader.Finish("timeout");
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

}  // namespace tfc
