#include "agreement/messages.h"

#include <gtest/gtest.h>

namespace tfc {
namespace {

Request Everything() {
  Request request;
  request.subject = Subject::kSetup;
  request.name = "grad";
  request.on_gpus = true;
  request.signature = 77;
  request.view = "line 1\nline 2";
  request.timeout_s = 2.5;
  request.takes_zeros = true;
  request.blob = "blob";
  request.objection = Status(Code::kUnimplemented, "none", 3);
  return request;
}

TEST(AgreementMessagesTest, SurviveTheWire) {
  Request back;
  ASSERT_TRUE(Decode(Encode(Everything()), &back).ok());
  EXPECT_EQ(back.subject, Subject::kSetup);
  EXPECT_EQ(back.name, "grad");
  EXPECT_TRUE(back.on_gpus);
  EXPECT_EQ(back.signature, 77u);
  EXPECT_EQ(back.view, "line 1\nline 2");
  EXPECT_EQ(back.timeout_s, 2.5);
  EXPECT_TRUE(back.takes_zeros);
  EXPECT_EQ(back.blob, "blob");
  EXPECT_EQ(back.objection.message(), "none");

  Decision decision;
  decision.subject = Subject::kPlan;
  decision.name = "grad";
  decision.channel = 9;
  decision.refusal = Status(Code::kMismatch, "differ", 3);
  Decision decided;
  ASSERT_TRUE(Decode(Encode(decision), &decided).ok());
  EXPECT_EQ(decided.subject, Subject::kPlan);
  EXPECT_EQ(decided.name, "grad");
  EXPECT_EQ(decided.channel, 9u);
  EXPECT_EQ(decided.refusal.code(), Code::kMismatch);
  EXPECT_EQ(decided.refusal.peer(), 3);
  EXPECT_EQ(decided.refusal.message(), "differ");
  decision.blobs = {"x", "", "z"};
  ASSERT_TRUE(Decode(Encode(decision), &decided).ok());
  EXPECT_EQ(decided.blobs, decision.blobs);
}

// Cut anywhere, lengthened, or with a length that lies: always PROTOCOL, never a read beyond the end.
TEST(AgreementMessagesTest, GarbageIsRefused) {
  const std::string request = Encode(Everything());
  Request back;
  for (size_t size = 0; size < request.size(); ++size)
    EXPECT_EQ(Decode(request.substr(0, size), &back).code(), Code::kProtocol) << size;
  EXPECT_EQ(Decode(request + "x", &back).code(), Code::kProtocol);
  EXPECT_EQ(Decode(std::string(1, '\x09') + request.substr(1), &back).code(), Code::kProtocol);
  EXPECT_EQ(Decode(std::string("\0\xff\xff\xff\xff", 5) + request, &back).code(), Code::kProtocol);
  Decision decision;
  decision.name = "key";
  decision.blobs = {"a", "b"};
  const std::string bytes = Encode(decision);
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(Decode(bytes.substr(0, size), &decision).code(), Code::kProtocol) << size;
  EXPECT_EQ(Decode(std::string(1, '\x09') + bytes.substr(1), &decision).code(), Code::kProtocol);
}

}  // namespace
}  // namespace tfc
