#include "agreement/messages.h"

#include "control/wire.h"

namespace tfc {
namespace {

Status ReadSubject(WireReader* reader, const char* what, Subject* subject) {
  const auto number = reader->Number<uint8_t>();
  *subject = static_cast<Subject>(number);
  if (number <= static_cast<uint8_t>(Subject::kSetup)) return Status::Ok();
  return Status(Code::kProtocol, std::string("malformed control message: ") + what + " of no known subject");
}

}  // namespace

std::string Encode(const Request& request) {
  WireWriter writer;
  writer.Number(static_cast<uint8_t>(request.subject))
      .Text(request.name)
      .Number(static_cast<uint8_t>(request.on_gpus))
      .Number(request.signature)
      .Text(request.view)
      .Number(request.timeout_s)
      .Number(static_cast<uint8_t>(request.takes_zeros))
      .Text(request.blob)
      .Error(request.objection);
  return writer.Take();
}

Status Decode(const std::string& bytes, Request* request) {
  WireReader reader(bytes);
  TFC_RETURN_IF_ERROR(ReadSubject(&reader, "request", &request->subject));
  request->name = reader.Text();
  request->on_gpus = reader.Number<uint8_t>() != 0;
  request->signature = reader.Number<uint64_t>();
  request->view = reader.Text();
  request->timeout_s = reader.Number<double>();
  request->takes_zeros = reader.Number<uint8_t>() != 0;
  request->blob = reader.Text();
  request->objection = reader.Error();
  return reader.Finish("request");
}

std::string Encode(const Decision& decision) {
  WireWriter writer;
  writer.Number(static_cast<uint8_t>(decision.subject))
      .Text(decision.name)
      .Number(static_cast<uint8_t>(decision.on_gpus))
      .Number(decision.channel)
      .Error(decision.refusal)
      .Number(static_cast<uint32_t>(decision.blobs.size()));
  for (const std::string& blob : decision.blobs) writer.Text(blob);
  return writer.Take();
}

Status Decode(const std::string& bytes, Decision* decision) {
  WireReader reader(bytes);
  TFC_RETURN_IF_ERROR(ReadSubject(&reader, "decision", &decision->subject));
  decision->name = reader.Text();
  decision->on_gpus = reader.Number<uint8_t>() != 0;
  decision->channel = reader.Number<uint32_t>();
  decision->refusal = reader.Error();
  const auto blobs = reader.Number<uint32_t>();
  decision->blobs.clear();
  for (uint32_t rank = 0; rank < blobs && reader.ok(); ++rank) decision->blobs.push_back(reader.Text());
  return reader.Finish("decision");
}

}  // namespace tfc
