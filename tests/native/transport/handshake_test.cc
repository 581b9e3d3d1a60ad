#include "collectives/transport/tcp/handshake.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/transport/tcp/acceptor.h"
#include "collectives/transport/tcp/dialer.h"
#include "collectives/transport/tcp/handshake_frames.h"
#include "collectives/transport/tcp/tcp_listener.h"
#include "testing/crowd.h"
#include "testing/log_recorder.h"
#include "testing/own_network.h"
#include "testing/tcp_world.h"

namespace tfc {
namespace {

JobKey Key(uint8_t fill = 1) { return JobKey(32, fill); }

// For Server: rank 0 of `size`, generation 7.
AcceptorOptions Options(int32_t size = 3) {
  AcceptorOptions options;
  options.key = Key();
  options.self = Identity{0, size, 7};
  return options;
}

// An acceptor that runs on a thread of its own.
class Server {
 public:
  explicit Server(AcceptorOptions options = Options(),
                  TcpListener listener = TakeOrDie(TcpListener::Create("127.0.0.1")))
      : stop_(TakeOrDie(EventFd::Create())) {
    options.log = log_.log();
    acceptor_ = TakeOrDie(Acceptor::Create(std::move(listener), options));
    thread_ = std::thread([this] { Run(); });
  }
  ~Server() { Stop(); }

  void Stop() {
    if (!thread_.joinable()) return;
    stop_.Signal();
    thread_.join();
  }
  const SocketAddress& address() const { return acceptor_->address(); }
  LogRecorder& log() { return log_; }
  const std::vector<Accepted>& accepted() const { return accepted_; }  // after Stop

  // Waits for the log: a connection that has not authenticated is reported only there.
  bool Logs(const std::string& part) {
    const Deadline deadline = Deadline::After(10);
    while (!log_.Contains(part) && !deadline.Passed()) std::this_thread::yield();
    return log_.Contains(part);
  }

 private:
  void Run() {
    while (true) {
      pollfd fds[2] = {{acceptor_->fd(), POLLIN, 0}, {stop_.fd(), POLLIN, 0}};
      ASSERT_GT(::poll(fds, 2, -1), 0);
      if (fds[1].revents != 0) return;
      for (Accepted& accepted : TakeOrDie(acceptor_->Advance())) accepted_.push_back(std::move(accepted));
    }
  }

  LogRecorder log_;
  std::unique_ptr<Acceptor> acceptor_;
  EventFd stop_;
  std::thread thread_;
  std::vector<Accepted> accepted_;
};

Result<UniqueFd> Join(const Server& server, const Hello& hello = Hello{Purpose::kControl, 7, 2, 0},
                      const JobKey& key = Key()) {
  return Connect(server.address(), hello, key, Deadline::After(10), -1);
}

// A raw connection, on which a test may send anything.
UniqueFd RawConnection(const Server& server) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(fd.get(), server.address().raw(), server.address().raw_size()), 0);
  return fd;
}

void Say(const UniqueFd& fd, const void* data, size_t size) {
  EXPECT_EQ(::send(fd.get(), data, size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
}

bool IsClosedByPeer(const UniqueFd& fd) {
  pollfd ready = {fd.get(), POLLIN, 0};
  if (::poll(&ready, 1, 10000) != 1) return false;
  char byte = 0;
  return ::recv(fd.get(), &byte, 1, 0) <= 0;
}

TEST(HandshakeTest, LetsAPeerInAndSaysWhoItIs) {
  Server server;
  Result<UniqueFd> fd = Join(server);
  ASSERT_TRUE(fd.ok()) << fd.status().message();
  Say(fd.value(), "first", 5);
  server.Stop();
  ASSERT_EQ(server.accepted().size(), 1u);
  const Accepted& accepted = server.accepted()[0];
  EXPECT_EQ(accepted.hello.sender, 2);
  EXPECT_EQ(accepted.hello.receiver, 0);
  EXPECT_EQ(accepted.hello.purpose, Purpose::kControl);
  char text[6] = {};
  pollfd ready = {accepted.fd.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&ready, 1, 10000), 1);
  EXPECT_EQ(::recv(accepted.fd.get(), text, 5, 0), 5) << "nothing behind the handshake may be swallowed";
  EXPECT_STREQ(text, "first");
  EXPECT_TRUE(server.log().lines().empty());
}

TEST(HandshakeTest, RefusesAnotherKeyOnBothSides) {
  Server server;
  const Result<UniqueFd> fd = Join(server, Hello{Purpose::kData, 7, 2, 0}, Key(9));
  ASSERT_FALSE(fd.ok());
  EXPECT_EQ(fd.status().code(), Code::kProtocol);
  EXPECT_EQ(fd.status().peer(), 0);
  EXPECT_NE(fd.status().message().find("job key"), std::string::npos) << fd.status().message();
  EXPECT_TRUE(server.Logs("refused the connection from 127.0.0.1"));
  EXPECT_TRUE(Join(server).ok());
}

// A client that ignores our proof and only tries to get in.
TEST(HandshakeTest, RefusesAForgedProof) {
  namespace hs = handshake_internal;
  Server server;
  const UniqueFd fd = RawConnection(server);
  hs::HelloBody hello;
  hello.purpose = 2;
  hello.sender = 2;
  hello.generation = 7;
  hs::Buffer frame;
  hs::Encode(hs::Kind::kHello, hello, &frame);
  Say(fd, frame.bytes.data(), frame.size);
  std::vector<char> challenge(sizeof(hs::Header) + sizeof(hs::ChallengeBody));
  ASSERT_EQ(::recv(fd.get(), challenge.data(), challenge.size(), MSG_WAITALL), static_cast<ssize_t>(challenge.size()));
  hs::Encode(hs::Kind::kProof, hs::ProofBody{}, &frame);
  Say(fd, frame.bytes.data(), frame.size);
  EXPECT_TRUE(IsClosedByPeer(fd));
  EXPECT_TRUE(server.Logs("does not have the job key"));
  server.Stop();
  EXPECT_TRUE(server.accepted().empty());
}

TEST(HandshakeTest, RefusesWhatDoesNotFitAndTellsThePeerWhy) {
  struct Case {
    Hello hello;
    const char* reason;
  };
  const Case cases[] = {
      {{Purpose::kData, 6, 2, 0}, "generation"},      {{Purpose::kData, 7, 2, 1}, "another rank"},
      {{Purpose::kData, 7, 3, 0}, "connecting rank"}, {{Purpose::kData, 7, -1, 0}, "connecting rank"},
      {{Purpose::kData, 7, 0, 0}, "connecting rank"}, {{static_cast<Purpose>(9), 7, 2, 0}, "purpose"}};
  Server server;
  for (const Case& one : cases) {
    const Result<UniqueFd> fd = Join(server, one.hello);
    ASSERT_FALSE(fd.ok());
    EXPECT_EQ(fd.status().code(), Code::kProtocol);
    EXPECT_NE(fd.status().message().find(one.reason), std::string::npos) << fd.status().message();
    EXPECT_TRUE(server.Logs(one.reason));
  }
  server.Stop();
  EXPECT_TRUE(server.accepted().empty());
}

TEST(HandshakeTest, GarbageIsRefusedAndLoggedWhileAGoodPeerGetsIn) {
  Server server;
  const UniqueFd http = RawConnection(server);
  const UniqueFd silent = RawConnection(server);
  const UniqueFd noise = RawConnection(server);
  const UniqueFd gone = RawConnection(server);
  const std::string request = "GET / HTTP/1.1\r\nHost: example\r\n\r\n";
  Say(http, request.data(), request.size());
  const std::vector<char> flood(100000, '\xff');
  (void)::send(noise.get(), flood.data(), flood.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  EXPECT_EQ(::shutdown(gone.get(), SHUT_WR), 0);
  EXPECT_TRUE(IsClosedByPeer(http));
  EXPECT_TRUE(IsClosedByPeer(noise));
  EXPECT_TRUE(IsClosedByPeer(gone));
  EXPECT_TRUE(server.Logs("does not speak tfcollective's protocol"));
  EXPECT_TRUE(server.Logs("closed the connection"));
  EXPECT_TRUE(Join(server).ok()) << "the silent connection must not be in the way";
}

TEST(HandshakeTest, ALengthIsCheckedBeforeTheBodyIsRead) {
  namespace hs = handshake_internal;
  Server server;
  for (const uint32_t size : {uint32_t{0}, uint32_t{1} << 20, ~uint32_t{0}}) {
    const UniqueFd fd = RawConnection(server);
    hs::Header header;
    header.kind = static_cast<uint16_t>(hs::Kind::kHello);
    header.body_size = size;
    Say(fd, &header, sizeof(header));
    EXPECT_TRUE(IsClosedByPeer(fd));
    EXPECT_TRUE(server.Logs("announced " + std::to_string(size) + " bytes"));
  }
}

// The header is all that two versions have in common.
TEST(HandshakeTest, APeerOfAnotherVersionLearnsThisOne) {
  namespace hs = handshake_internal;
  Server server;
  const UniqueFd fd = RawConnection(server);
  std::vector<uint8_t> hello(300);
  hs::Header header;
  header.version = 99;
  header.kind = static_cast<uint16_t>(hs::Kind::kHello);
  header.body_size = static_cast<uint32_t>(hello.size() - sizeof(header));
  std::memcpy(hello.data(), &header, sizeof(header));
  Say(fd, hello.data(), hello.size());
  hs::Header answer;
  ASSERT_EQ(::recv(fd.get(), &answer, sizeof(answer), MSG_WAITALL), static_cast<ssize_t>(sizeof(answer)));
  EXPECT_EQ(answer.magic, hs::kMagic);
  EXPECT_EQ(answer.version, hs::kVersion);
  EXPECT_TRUE(IsClosedByPeer(fd));
  EXPECT_TRUE(server.Logs("version 99"));
}

TEST(HandshakeTest, ASlowUnauthenticatedPeerIsClosedInTime) {
  AcceptorOptions options = Options();
  options.handshake_seconds = 0.05;
  Server server(options);
  const UniqueFd silent = RawConnection(server);
  EXPECT_TRUE(IsClosedByPeer(silent));
  EXPECT_TRUE(server.Logs("in time"));
}

TEST(HandshakeTest, AtTheLimitAnOpenHandshakeKeepsItsPlace) {
  AcceptorOptions options = Options();
  options.spare_handshakes = 1;  // 4 places
  options.handshake_seconds = options.crowded_seconds = 60;
  TcpListener listener = TakeOrDie(TcpListener::Create("127.0.0.1"));
  ClientHandshake first = TakeOrDie(
      ClientHandshake::Start(listener.address(), Hello{Purpose::kControl, 7, 2, 0}, Key(), Deadline::After(60)));
  while (TakeOrDie(first.Advance()) != HandshakeWants::kRead) std::this_thread::yield();  // it has said HELLO
  Server server(options, std::move(listener));
  const Crowd crowd(server.address(), 20);
  const Result<UniqueFd> late =
      Connect(server.address(), Hello{Purpose::kControl, 7, 1, 0}, Key(), Deadline::After(0.3), -1);
  EXPECT_EQ(late.status().code(), Code::kDeadlineExceeded) << "it has to wait for a place";
  pollfd challenged = {first.fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&challenged, 1, 10000), 1);
  HandshakeWants wants = HandshakeWants::kRead;
  while (wants != HandshakeWants::kNothing) {
    const Result<HandshakeWants> advanced = first.Advance();
    ASSERT_TRUE(advanced.ok()) << advanced.status().message();
    wants = advanced.value();
    std::this_thread::yield();
  }
}

TEST(HandshakeTest, AtTheLimitWhoSaysNothingMakesRoom) {
  AcceptorOptions options = Options();
  options.spare_handshakes = 1;
  options.handshake_seconds = 60;
  options.crowded_seconds = 0.05;
  Server server(options);
  const Crowd crowd(server.address(), 20);
  EXPECT_TRUE(Join(server).ok());
  EXPECT_TRUE(server.Logs("other connections wait for a place"));
}

// Peers that connect while the acceptor does not run yet, as they do while rank 0 is late.
TEST(HandshakeTest, AThousandPeersAtOnceAreAllAccepted) {
  constexpr int kPeers = 1000;
  if (!AllowDescriptors(2 * kPeers + 200)) GTEST_SKIP() << "too few descriptors";
  TcpListener listener = TakeOrDie(TcpListener::Create("127.0.0.1"));
  std::vector<Dialer> dialers;
  for (int rank = 1; rank <= kPeers; ++rank)
    dialers.emplace_back(listener.address(), Hello{Purpose::kControl, 7, rank, 0}, Key(), Deadline::After(60));
  for (Dialer& dialer : dialers) ASSERT_TRUE(dialer.Advance().ok());
  std::vector<UniqueFd> connected;
  AcceptorOptions options = Options(kPeers + 1);
  options.handshake_seconds = 60;  // one thread plays all peers
  Server server(options, std::move(listener));
  std::vector<bool> done(dialers.size());
  while (connected.size() < dialers.size()) {
    for (size_t i = 0; i < dialers.size(); ++i) {
      if (done[i]) continue;
      const Result<HandshakeWants> wants = dialers[i].Advance();
      ASSERT_TRUE(wants.ok()) << wants.status().message();
      if (wants.value() != HandshakeWants::kNothing) continue;
      done[i] = true;
      connected.push_back(dialers[i].TakeFd());
    }
  }
  server.Stop();
  std::set<int> ranks;
  for (const Accepted& accepted : server.accepted()) ranks.insert(accepted.hello.sender);
  EXPECT_EQ(ranks.size(), dialers.size());
  EXPECT_TRUE(server.log().lines().empty()) << server.log().lines().front();
}

TEST(HandshakeTest, TwoThousandConnectionsWithoutTheKeyKeepNoPeerOut) {
  constexpr size_t kCrowd = 2000;
  if (!AllowDescriptors(kCrowd + 500)) GTEST_SKIP() << "too few descriptors";
  AcceptorOptions options = Options();
  options.handshake_seconds = 600;  // or they would be gone without being pushed
  options.crowded_seconds = 0.05;
  Server server(options);
  const Crowd crowd(server.address(), kCrowd);
  ASSERT_EQ(crowd.size(), kCrowd);
  for (const int rank : {1, 2}) {
    const Result<UniqueFd> fd =
        Connect(server.address(), Hello{Purpose::kControl, 7, rank, 0}, Key(), Deadline::After(60), -1);
    EXPECT_TRUE(fd.ok()) << fd.status().message();
  }
}

// Accept fails while this process has no descriptor left: no error, no busy loop, and later everything goes on.
TEST(HandshakeTest, WithoutDescriptorsItWaits) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the undefined-behaviour sanitizer opens pipes to see whether memory can be read";
#endif
  AcceptorOptions options = Options();
  LogRecorder log;
  options.log = log.log();
  const auto acceptor = TakeOrDie(Acceptor::Create(TakeOrDie(TcpListener::Create("127.0.0.1")), options));
  Dialer dialer(acceptor->address(), Hello{Purpose::kControl, 7, 2, 0}, Key(), Deadline::After(30));
  ASSERT_TRUE(dialer.Advance().ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{3, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  pollfd ready = {acceptor->fd(), POLLIN, 0};
  int turns = 0;
  for (const Deadline end = Deadline::After(0.35); !end.Passed() && turns < 1000; ++turns) {
    if (::poll(&ready, 1, end.LeftMillis(1000)) == 1) EXPECT_TRUE(TakeOrDie(acceptor->Advance()).empty());
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_LT(turns, 20);
  EXPECT_TRUE(log.Contains("no new connections for a moment"));
  bool accepted = false;
  for (const Deadline end = Deadline::After(30); !accepted && !end.Passed();) {
    if (::poll(&ready, 1, 10) == 1) accepted = !TakeOrDie(acceptor->Advance()).empty();
    ASSERT_TRUE(dialer.Advance().ok());
  }
  EXPECT_TRUE(accepted);
}

TEST(ConnectTest, NoListenerMeansThePeerIsLost) {
  SocketAddress address;
  {
    const TcpListener listener = TakeOrDie(TcpListener::Create("127.0.0.1"));
    address = listener.address();
  }
  const Result<UniqueFd> fd = Connect(address, Hello{Purpose::kControl, 7, 2, 1}, Key(), Deadline::After(10), -1);
  ASSERT_FALSE(fd.ok());
  EXPECT_EQ(fd.status().code(), Code::kPeerLost);
  EXPECT_EQ(fd.status().peer(), 1);
  EXPECT_NE(fd.status().message().find("rank 1 (" + address.ToString() + ")"), std::string::npos)
      << fd.status().message();
}

// Takes a connection and ends it: with a reset, or as if it had been pushed out.
void TakeAndDrop(const TcpListener& listener, bool reset) {
  pollfd ready = {listener.fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&ready, 1, 10000), 1);
  const TcpListener::Incoming incoming = TakeOrDie(listener.Accept());
  const linger at_once = {1, 0};
  if (reset) {
    EXPECT_EQ(::setsockopt(incoming.fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
  }
}

TEST(ConnectTest, AConnectionThatGotLostInTheHandshakeIsMadeAgain) {
  TcpListener listener = TakeOrDie(TcpListener::Create("127.0.0.1"));
  const SocketAddress address = listener.address();
  std::unique_ptr<Server> server;
  std::thread other([&] {
    for (const bool reset : {false, true, false}) TakeAndDrop(listener, reset);
    server = std::make_unique<Server>(Options(), std::move(listener));
  });
  const Result<UniqueFd> fd = Connect(address, Hello{Purpose::kControl, 7, 2, 0}, Key(), Deadline::After(30), -1);
  other.join();
  EXPECT_TRUE(fd.ok()) << fd.status().message();
  server->Stop();
  EXPECT_EQ(server->accepted().size(), 1u);
}

TEST(ConnectTest, APeerThatDropsEveryConnectionIsGivenUpAtTheDeadline) {
  const TcpListener listener = TakeOrDie(TcpListener::Create("127.0.0.1"));
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) (void)listener.Accept();
  });
  const Result<UniqueFd> fd =
      Connect(listener.address(), Hello{Purpose::kControl, 7, 2, 1}, Key(), Deadline::After(1), -1);
  stop = true;
  other.join();
  EXPECT_EQ(fd.status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(fd.status().peer(), 1);
  EXPECT_NE(fd.status().message().find(" attempts)"), std::string::npos) << fd.status().message();
}

// In a network of its own, whose loopback interface comes up after the first attempts.
TEST(ConnectTest, ARouteThatComesLateIsWaitedFor) {
  bool alone = false;
  Status status;
  size_t accepted = 0;
  std::thread network([&] {
    alone = ::unshare(CLONE_NEWNET) == 0;
    if (!alone) return;
    // Without an interface there is no other address to bind, and nothing outside reaches this network.
    Server server(Options(), TakeOrDie(TcpListener::Create("0.0.0.0")));
    const SocketAddress address = TakeOrDie(SocketAddress::FromHost("127.0.0.1", server.address().port()));
    std::thread late([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      EXPECT_TRUE(SetLoopback(true));
    });
    status = Connect(address, Hello{Purpose::kControl, 7, 2, 0}, Key(), Deadline::After(30), -1).status();
    late.join();
    server.Stop();
    accepted = server.accepted().size();
  });
  network.join();
  if (!alone) GTEST_SKIP() << "a network of its own needs CAP_SYS_ADMIN";
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(accepted, 1u);
}

TEST(ConnectTest, AnotherKeyIsNotTriedAgain) {
  Server server;
  Dialer dialer(server.address(), Hello{Purpose::kControl, 7, 2, 0}, Key(9), Deadline::After(30));
  Result<HandshakeWants> wants = dialer.Advance();
  while (wants.ok()) {
    std::this_thread::yield();
    wants = dialer.Advance();
  }
  EXPECT_EQ(wants.status().code(), Code::kProtocol);
  EXPECT_EQ(dialer.attempts(), 1);
}

TEST(ConnectTest, AnotherVersionIsNotTriedAgain) {
  const TcpListener listener = TakeOrDie(TcpListener::Create("127.0.0.1"));
  std::thread other([&] {
    pollfd ready = {listener.fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 10000), 1);
    const TcpListener::Incoming incoming = TakeOrDie(listener.Accept());
    handshake_internal::Header header;
    header.version = 99;
    Say(incoming.fd, &header, sizeof(header));
  });
  const Result<UniqueFd> fd =
      Connect(listener.address(), Hello{Purpose::kControl, 7, 2, 0}, Key(), Deadline::After(30), -1);
  other.join();
  EXPECT_EQ(fd.status().code(), Code::kProtocol);
  EXPECT_NE(fd.status().message().find("version 99"), std::string::npos) << fd.status().message();
}

TEST(ConnectTest, ASilentListenerMeansDeadlineExceeded) {
  const TcpListener listener = TakeOrDie(TcpListener::Create("127.0.0.1"));
  const Result<UniqueFd> fd =
      Connect(listener.address(), Hello{Purpose::kControl, 7, 2, 1}, Key(), Deadline::After(0.05), -1);
  EXPECT_EQ(fd.status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(fd.status().peer(), 1);
}

TEST(ConnectTest, CancelEndsItFromAnotherThread) {
  const TcpListener listener = TakeOrDie(TcpListener::Create("127.0.0.1"));
  const EventFd cancel = TakeOrDie(EventFd::Create());
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that connecting has begun
    cancel.Signal();
  });
  const Result<UniqueFd> fd =
      Connect(listener.address(), Hello{Purpose::kControl, 7, 2, 1}, Key(), Deadline::After(20), cancel.fd());
  other.join();
  EXPECT_EQ(fd.status().code(), Code::kCancelled);
}

TEST(ConnectTest, CancelEndsItAfterAConnectionThatGotLost) {
  const TcpListener listener = TakeOrDie(TcpListener::Create("127.0.0.1"));
  const EventFd cancel = TakeOrDie(EventFd::Create());
  std::thread other([&] {
    pollfd ready = {listener.fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 60000), 1);
    (void)TakeOrDie(listener.Accept());  // and closes it; the next one waits for an answer
    cancel.Signal();
  });
  const Result<UniqueFd> fd =
      Connect(listener.address(), Hello{Purpose::kControl, 7, 2, 1}, Key(), Deadline::After(3600), cancel.fd());
  other.join();
  EXPECT_EQ(fd.status().code(), Code::kCancelled) << fd.status().message();
}

TEST(ConnectTest, AListenerThatIsNoneOfOursIsAProtocolError) {
  const TcpListener listener = TakeOrDie(TcpListener::Create("127.0.0.1"));
  std::thread other([&] {
    pollfd ready = {listener.fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 10000), 1);
    const TcpListener::Incoming incoming = TakeOrDie(listener.Accept());
    const std::string greeting = "220 smtp.example ready, and then some more to fill the frame\r\n";
    Say(incoming.fd, greeting.data(), greeting.size());
    char bytes[256];
    pollfd said = {incoming.fd.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&said, 1, 10000), 1);
    EXPECT_GT(::recv(incoming.fd.get(), bytes, sizeof(bytes), 0), 0);
  });
  const Result<UniqueFd> fd =
      Connect(listener.address(), Hello{Purpose::kControl, 7, 2, 1}, Key(), Deadline::After(20), -1);
  other.join();
  EXPECT_EQ(fd.status().code(), Code::kProtocol);
}

TEST(TcpListenerTest, BindsOnlyToNumericHosts) {
  EXPECT_EQ(TcpListener::Create("localhost").status().code(), Code::kInvalidArgument);
  const TcpListener listener = TakeOrDie(TcpListener::Create("127.0.0.1"));
  EXPECT_NE(listener.address().port(), 0);
  const Result<TcpListener::Incoming> none = listener.Accept();
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none.value().fd.valid());
}

TEST(TcpListenerTest, ListensOnIpv6) {
  const Result<TcpListener> listener = TcpListener::Create("::1");
  if (!listener.ok()) GTEST_SKIP() << "no IPv6 here: " << listener.status().message();
  const std::string text = listener.value().address().ToString();
  EXPECT_EQ(text.substr(0, 6), "[::1]:");
  EXPECT_EQ(SocketAddress::Parse(text).Take().port(), listener.value().address().port());
}

}  // namespace
}  // namespace tfc
