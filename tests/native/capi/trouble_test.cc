// What happens to the others, and to this process, when something goes wrong on one rank.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "testing/log_recorder.h"
#include "testing/refused_calls.h"
#include "testing/world.h"

namespace tfc::testing {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// A listener and its address, without a world.
struct Listening {
  tfc_listener* listener = nullptr;
  std::string address;

  Listening() {
    const tfc_listener_options options{sizeof(tfc_listener_options), "127.0.0.1", "node", 0, 0};
    char buffer[512];
    EXPECT_EQ(tfc_listener_create(&options, &listener, nullptr), TFC_OK);
    EXPECT_EQ(tfc_listener_address(listener, buffer, sizeof(buffer), nullptr), TFC_OK);
    address = buffer;
  }
};

// Tries to connect as one rank. Destroys the communicator again unless the caller takes it.
CallResult Connect(int rank, tfc_listener* listener, const std::vector<std::string>& addresses, double timeout_s,
                   tfc_communicator** wanted = nullptr, tfc_cancellation* cancellation = nullptr) {
  const std::vector<uint8_t> key(32, 5);
  std::vector<const char*> pointers;
  for (const std::string& address : addresses) pointers.push_back(address.c_str());
  tfc_communicator_options options{};
  options.struct_size = sizeof(options);
  options.rank = rank;
  options.size = static_cast<int32_t>(addresses.size());
  options.addresses = pointers.data();
  options.key = key.data();
  options.key_size = key.size();
  options.connect_timeout_s = timeout_s;
  options.spin_us = -1;
  options.cancellation = cancellation;
  tfc_error error{};
  error.struct_size = sizeof(error);
  tfc_communicator* communicator = nullptr;
  const int code = tfc_communicator_create(listener, &options, &communicator, &error);
  if (wanted != nullptr) {
    *wanted = communicator;
  } else {
    tfc_communicator_release(communicator);
  }
  return CallResult{code, error.peer, error.message};
}

tfc_plan* Acquire(tfc_communicator* communicator) {
  tfc_plan_options options{};
  options.struct_size = sizeof(options);
  options.name = "step";
  options.signature = "a float32[3]";
  options.num_buckets = 1;
  options.op = TFC_SUM;
  options.prescale = options.postscale = 1;
  tfc_plan* plan = nullptr;
  EXPECT_EQ(tfc_plan_acquire(communicator, &options, &plan, nullptr), TFC_OK);
  return plan;
}

TEST(TroubleTest, AFailedCommunicatorIsIdle) {
  WorldOptions options;
  options.transport = TFC_TRANSPORT_TCP;
  std::atomic<int> missing{2};
  RunWorld(options, [&missing](int rank, tfc_communicator* communicator) {
    std::vector<float> values(3, 1);
    EXPECT_EQ(AllReduce(communicator, &values).code, TFC_OK);
    --missing;
    while (missing > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // until the other one has it, too
    if (rank == 0) tfc_communicator_abort(communicator, "for the test");
    while (AllReduce(communicator, &values).code == TFC_OK) {
    }
    const double before = CpuSeconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // in which nothing should happen
    EXPECT_LT(CpuSeconds() - before, 0.15);
  });
}

// On the wire as in shared memory: while it waits for a peer, and not while it waits for work.
TEST(TroubleTest, ARankThatWaitsOnTheWireSpinsForTheTimeOfItsOption) {
  constexpr double kWorth = 0.1;  // seconds of processor time that waiting without spinning does not take
  WorldOptions options;
  options.transport = TFC_TRANSPORT_TCP;
  options.spin_us = 60 * 1000 * 1000;
  options.op_timeout_s = 60;
  std::atomic<int> missing{2};
  RunWorld(options, [&missing](int rank, tfc_communicator* communicator) {
    const double before = CpuSeconds();
    const auto begin = Clock::now();
    while (rank == 1 && CpuSeconds() - before < kWorth && SecondsSince(begin) < 20)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_TRUE(rank == 0 || CpuSeconds() - before >= kWorth) << "rank 0 sleeps";
    std::vector<float> values(3, 1);
    EXPECT_EQ(AllReduce(communicator, &values).code, TFC_OK);
    --missing;
    while (missing > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const double idle = CpuSeconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // in which nothing should happen
    EXPECT_LT(CpuSeconds() - idle, 0.15);
  });
}

// Rank 1 comes to a large broadcast only after an operation by name, which rank 0 needs to go on, too.
TEST(TroubleTest, ABroadcastThatARankIsNotReadyForHoldsUpNothingElse) {
  for (const auto& nodes : {std::vector<std::string>{"a", "b"}, {"a", "b", "b"}}) {
    WorldOptions options;
    options.size = static_cast<int>(nodes.size());
    options.nodes = nodes;
    options.op_timeout_s = 30;
    const auto codes = RunWorld(options, [](int rank, tfc_communicator* communicator) {
      constexpr size_t kCount = size_t{40} << 20;  // 160 MiB
      std::vector<float> large(kCount, rank == 0 ? 2.5f : 0.0f);
      const auto broadcast = [&] {
        tfc_request request = MakeRequest(TFC_BROADCAST, TFC_FLOAT32, TFC_SUM);
        const tfc_span span{large.data(), large.data(), static_cast<int64_t>(kCount)};
        request.spans = &span;
        request.num_spans = 1;
        const CallResult result = RunNow(communicator, request);
        EXPECT_EQ(result.code, TFC_OK) << result.message;
      };
      std::future<void> sent;
      if (rank == 0) {
        sent = std::async(std::launch::async, broadcast);
        std::this_thread::sleep_for(std::chrono::milliseconds(500));  // so that everything is full
      }
      float value = 1;
      tfc_request metrics = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "metrics");
      const tfc_span span{&value, &value, 1};
      metrics.spans = &span;
      metrics.num_spans = 1;
      const CallResult result = SubmitAndWait(communicator, metrics);
      EXPECT_EQ(result.code, TFC_OK) << result.message;
      rank == 0 ? sent.get() : broadcast();
      EXPECT_EQ(large.front(), 2.5f);
      EXPECT_EQ(large.back(), 2.5f);
    });
    for (const int code : codes) EXPECT_EQ(code, TFC_OK);
  }
}

void Record(void* recorder, int32_t, const char* message) {
  static_cast<LogRecorder*>(recorder)->log().Warning(message);
}

// `call` fails with `error` on rank `refused` of two nodes of two ranks.
void ExpectTcpWhere(int call, int error, int refused, const std::string& line) {
  LogRecorder log;
  WorldOptions options;
  options.size = 4;
  options.nodes = {"a", "a", "b", "b"};
  options.log = &Record;
  options.log_user = &log;
  options.before_connect = [&](int rank) {
    if (rank == refused) ASSERT_TRUE(RefuseCall(call, error)) << "this system has no seccomp";
  };
  const auto codes = RunWorld(options, [](int rank, tfc_communicator* communicator) {
    tfc_communicator_info info{};
    info.struct_size = sizeof(info);
    EXPECT_EQ(tfc_communicator_get_info(communicator, &info, nullptr), TFC_OK);
    EXPECT_EQ(info.uses_shared_memory, 0);
    EXPECT_EQ(info.local_rank, rank % 2);
    std::vector<float> values(100000, static_cast<float>(rank));
    const CallResult result = AllReduce(communicator, &values);
    EXPECT_EQ(result.code, TFC_OK) << result.message;
    EXPECT_EQ(values, std::vector<float>(100000, 6.0f));
  });
  for (const int code : codes) EXPECT_EQ(code, TFC_OK);
  EXPECT_TRUE(log.Contains("shared memory is not used, all data goes over TCP: rank " + std::to_string(refused)));
  EXPECT_TRUE(log.Contains(line));
}

TEST(TroubleTest, WhereSharedMemoryIsNotAllowedAllRanksUseTcp) {
  ExpectTcpWhere(SYS_memfd_create, EACCES, 0, "memfd_create failed: Permission denied");
  ExpectTcpWhere(SYS_memfd_create, EPERM, 2, "memfd_create failed: Operation not permitted");
}

TEST(TroubleTest, WhereSharedMemoryIsTooSmallAllRanksUseTcp) {
  ExpectTcpWhere(SYS_fallocate, ENOSPC, 2, "KiB of shared memory failed: No space left on device");
  ExpectTcpWhere(SYS_ftruncate, EFBIG, 0, "ftruncate failed: File too large");
}

// The first operation that is matched by name needs a channel that was not used before.
TEST(TroubleTest, SharedMemoryThatRunsOutLaterIsAnErrorOnAllRanks) {
  WorldOptions options;
  options.size = 3;
  options.before_connect = [](int rank) {
    if (rank == 1) ASSERT_TRUE(RefuseCall(SYS_fallocate, ENOSPC, false)) << "this system has no seccomp";
  };
  RunWorld(options, [](int, tfc_communicator* communicator) {
    float value = 1;
    tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "metrics");
    const tfc_span span{&value, &value, 1};
    request.spans = &span;
    request.num_spans = 1;
    const CallResult result = SubmitAndWait(communicator, request);
    EXPECT_EQ(result.code, TFC_RESOURCE_EXHAUSTED) << result.message;
    EXPECT_NE(result.message.find("'metrics'"), std::string::npos) << result.message;
    EXPECT_NE(result.message.find("KiB of shared memory failed"), std::string::npos) << result.message;
  });
}

// The thread on which callbacks run makes the stacks.
TEST(TroubleTest, WithoutMemoryForAStackAnOperationFailsOnAllRanks) {
  for (const int32_t transport : {TFC_TRANSPORT_AUTO, TFC_TRANSPORT_TCP}) {
    WorldOptions options;
    options.transport = transport;
    options.op_timeout_s = 60;
    RunWorld(options, [](int, tfc_communicator* communicator) {
      float value = 1;
      const tfc_span span{&value, &value, 1};
      tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM, "first");
      request.spans = &span;
      request.num_spans = 1;
      std::promise<void> called;
      const auto refuse = [](void* done, const tfc_error* error) {
        EXPECT_EQ(error, nullptr);
        EXPECT_TRUE(RefuseCall(SYS_mprotect, ENOMEM)) << "this system has no seccomp";
        static_cast<std::promise<void>*>(done)->set_value();
      };
      ASSERT_EQ(tfc_submit(communicator, &request, refuse, &called, nullptr), TFC_OK);
      called.get_future().wait();
      const auto end = [](void* promise, const tfc_error* error) {
        const CallResult result =
            error == nullptr ? CallResult{} : CallResult{error->code, error->peer, error->message};
        static_cast<std::promise<CallResult>*>(promise)->set_value(result);
      };
      std::vector<float> values(1 << 22);  // more than a peer leaves ready
      const tfc_span large{values.data(), values.data(), 1 << 22};
      tfc_plan* plan = Acquire(communicator);  // a channel, and so a stack, of its own
      CallResult result;
      // A rank that must wait for the other fails. Ranks that meet to the microsecond need not wait: they go on.
      for (int i = 0; i < 1000 && result.code == TFC_OK; ++i) {
        std::promise<CallResult> ended;
        tfc_error error{};
        error.struct_size = sizeof(error);
        const int code = tfc_plan_start(plan, 0, TFC_FLOAT32, &large, 1, end, &ended, &error);
        result = code == TFC_OK ? ended.get_future().get() : CallResult{code, error.peer, error.message};
      }
      tfc_plan_release(plan);
      EXPECT_EQ(result.code, TFC_RESOURCE_EXHAUSTED) << result.message;
      EXPECT_NE(result.message.find("a fiber's stack failed"), std::string::npos) << result.message;
    });
  }
}

TEST(TroubleTest, ARankThatCannotSetUpTellsTheOthers) {
  Listening a, b;
  const std::vector<std::string> good{a.address, b.address};
  std::vector<std::string> bad = good;
  const size_t name = bad[0].find("tfcollective-");
  bad[0].replace(name, 13, "nobodythere--");
  const auto begin = Clock::now();
  auto leader = std::async(std::launch::async, [&] { return Connect(0, a.listener, good, 30); });
  const CallResult broken = Connect(1, b.listener, bad, 30);
  EXPECT_EQ(broken.code, TFC_IO) << broken.message;
  const CallResult result = leader.get();
  EXPECT_EQ(result.code, TFC_ABORTED) << result.message;
  EXPECT_EQ(result.peer, 1);
  EXPECT_NE(result.message.find("shared memory"), std::string::npos) << result.message;
  EXPECT_LT(SecondsSince(begin), 10);
}

TEST(TroubleTest, ARankThatGivesUpConnectingEndsTheWaitOfRankZero) {
  Listening a, b, absent;
  const std::vector<std::string> addresses{a.address, b.address, absent.address};
  const auto begin = Clock::now();
  auto root = std::async(std::launch::async, [&] { return Connect(0, a.listener, addresses, 30); });
  EXPECT_EQ(Connect(1, b.listener, addresses, 2).code, TFC_DEADLINE_EXCEEDED);
  const CallResult result = root.get();
  EXPECT_EQ(result.code, TFC_ABORTED) << result.message;
  EXPECT_EQ(result.peer, 1);
  EXPECT_LT(SecondsSince(begin), 10);
  tfc_listener_destroy(absent.listener);
}

// One rank connects, on a thread of its own, until it is cancelled.
class Connecting {
 public:
  Connecting(int rank, tfc_listener* listener, const std::vector<std::string>& addresses) {
    EXPECT_EQ(tfc_cancellation_create(&cancellation_, nullptr), TFC_OK);
    result_ = std::async(std::launch::async, [=] {
      return Connect(rank, listener, addresses, /*timeout_s=*/3600, nullptr, cancellation_);
    });
  }
  ~Connecting() {
    Cancel("the test has failed");
    if (result_.valid()) result_.wait();
    tfc_cancellation_release(cancellation_);
  }

  void Cancel(const char* cause) { tfc_cancellation_request(cancellation_, cause); }
  CallResult Result() { return result_.get(); }

 private:
  tfc_cancellation* cancellation_ = nullptr;
  std::future<CallResult> result_;
};

size_t Descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

// How many of this process's threads are those of communicators, or of ranks that connect.
int Monitors() {
  int count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(thread.path() / "comm"), name);
    count += name == "tfc-monitor" ? 1 : 0;
  }
  return count;
}

template <typename Condition>
bool Eventually(const Condition& holds) {
  const auto begin = Clock::now();
  // What the kernel lists of a process gives no notice.
  while (!holds() && SecondsSince(begin) < 60) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return holds();
}

// A socket in place of the one at which a node's first rank gives the shared memory away: it does not answer.
class SilentLeader {
 public:
  SilentLeader() : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name_ = "tfcollective-silent-" + std::to_string(::getpid()) + "-" + std::to_string(socket_.get());
    name_.copy(address.sun_path + 1, name_.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name_.size());
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(socket_.get(), 8), 0);
  }

  // The address of a rank, with this socket in it.
  std::string In(std::string address) const {
    const size_t begin = address.find("tfcollective-");
    return address.replace(begin, address.find(';', begin) - begin, name_);
  }
  bool AwaitClient() const {
    pollfd watched{socket_.get(), POLLIN, 0};
    return ::poll(&watched, 1, 60 * 1000) == 1;
  }

 private:
  UniqueFd socket_;
  std::string name_;
};

TEST(CancellationTest, EndsTheWaitForARankThatDoesNotComeAndLeavesNothingBehind) {
  for (const int rank : {0, 1}) {
    Listening absent;
    ASSERT_TRUE(Eventually([] { return Monitors() == 0; }));  // of other tests
    const size_t descriptors = Descriptors();
    Listening mine;
    std::vector<std::string> addresses{mine.address, absent.address};
    if (rank == 1) std::swap(addresses[0], addresses[1]);
    Connecting connecting(rank, mine.listener, addresses);
    ASSERT_TRUE(Eventually([] { return Monitors() == 1; }));
    connecting.Cancel("for the test");
    const CallResult result = connecting.Result();
    EXPECT_EQ(result.code, TFC_CANCELLED) << result.message;
    EXPECT_NE(result.message.find("for the test"), std::string::npos) << result.message;
    EXPECT_LE(Descriptors(), descriptors);  // other tests may have left some that were about to be closed
    EXPECT_TRUE(Eventually([] { return Monitors() == 0; }));  // the kernel lists joined ones a little longer
    tfc_listener_destroy(absent.listener);
  }
}

// Rank 0 waits for rank 2, which has asked for the shared memory in the wrong place, and rank 1 for both.
TEST(CancellationTest, EndsTheExchangeOfSharedMemoryAndTheOthersHearWhy) {
  for (const size_t cancelled : {0, 1, 2}) {
    const SilentLeader silent;
    Listening listeners[3];
    const std::vector<std::string> good{listeners[0].address, listeners[1].address, listeners[2].address};
    const std::vector<std::string> bad{silent.In(good[0]), good[1], good[2]};
    Connecting ranks[] = {
        {0, listeners[0].listener, good}, {1, listeners[1].listener, good}, {2, listeners[2].listener, bad}};
    ASSERT_TRUE(silent.AwaitClient());
    ranks[cancelled].Cancel("for the test");
    for (size_t rank = 0; rank < 3; ++rank) {
      const CallResult result = ranks[rank].Result();
      EXPECT_EQ(result.code, rank == cancelled ? TFC_CANCELLED : TFC_ABORTED) << rank << ": " << result.message;
      EXPECT_EQ(result.peer, static_cast<int>(cancelled)) << rank << ": " << result.message;
      EXPECT_NE(result.message.find("for the test"), std::string::npos) << rank << ": " << result.message;
    }
  }
}

TEST(CancellationTest, ARequestThatComesBeforeTheCallEndsIt) {
  Listening absent, mine;
  tfc_cancellation* cancellation = nullptr;
  ASSERT_EQ(tfc_cancellation_create(&cancellation, nullptr), TFC_OK);
  tfc_cancellation_request(cancellation, "for the test");
  tfc_cancellation_request(cancellation, "too late");
  const CallResult result = Connect(0, mine.listener, {mine.address, absent.address}, 3600, nullptr, cancellation);
  EXPECT_EQ(result.code, TFC_CANCELLED);
  EXPECT_NE(result.message.find("for the test"), std::string::npos) << result.message;
  tfc_cancellation_release(cancellation);
  tfc_listener_destroy(absent.listener);
}

TEST(CancellationTest, ARequestThatComesAfterTheCallChangesNothing) {
  Listening listeners[2];
  const std::vector<std::string> addresses{listeners[0].address, listeners[1].address};
  const auto run = [&](int rank) {
    tfc_cancellation* cancellation = nullptr;
    EXPECT_EQ(tfc_cancellation_create(&cancellation, nullptr), TFC_OK);
    tfc_communicator* communicator = nullptr;
    EXPECT_EQ(Connect(rank, listeners[rank].listener, addresses, 30, &communicator, cancellation).code, TFC_OK);
    tfc_cancellation_request(cancellation, "too late");
    tfc_cancellation_release(cancellation);
    std::vector<float> values(3, 1);
    EXPECT_EQ(AllReduce(communicator, &values).code, TFC_OK);
    EXPECT_EQ(tfc_communicator_shutdown(communicator, 10, nullptr), TFC_OK);
    tfc_communicator_release(communicator);
  };
  auto other = std::async(std::launch::async, run, 1);
  run(0);
  other.get();
}

TEST(TroubleTest, RankZeroNamesThoseWhoDidNotConnect) {
  Listening a, b;
  const CallResult result = Connect(0, a.listener, {a.address, b.address}, 0.3);
  EXPECT_EQ(result.code, TFC_DEADLINE_EXCEEDED);
  EXPECT_EQ(result.peer, 1);
  EXPECT_NE(result.message.find("rank 1"), std::string::npos) << result.message;
  tfc_listener_destroy(b.listener);
}

// A bucket that was started early waits behind the one that the other rank does not come to: it is not this rank that
// the step waits for.
TEST(TroubleTest, ABucketBehindOneThatRunsDoesNotBlameItsOwnRank) {
  std::atomic<bool> over{false};
  RunWorld(WorldOptions(), [&over](int rank, tfc_communicator* communicator) {
    tfc_plan_options plan_options{};
    plan_options.struct_size = sizeof(plan_options);
    plan_options.name = plan_options.signature = "two";
    plan_options.num_buckets = 2;
    plan_options.op = TFC_SUM;
    plan_options.prescale = plan_options.postscale = 1.0;
    plan_options.timeout_s = 3;
    tfc_plan* plan = nullptr;
    ASSERT_EQ(tfc_plan_acquire(communicator, &plan_options, &plan, nullptr), TFC_OK);
    const std::unique_ptr<tfc_plan, decltype(&tfc_plan_release)> owner(plan, &tfc_plan_release);
    std::vector<std::vector<float>> values(2, std::vector<float>(3, 1));
    const auto start = [&](size_t bucket, std::promise<CallResult>* ended) {
      const tfc_span span{values[bucket].data(), values[bucket].data(), 3};
      const auto end = [](void* promise, const tfc_error* error) {
        static_cast<std::promise<CallResult>*>(promise)->set_value(
            error == nullptr ? CallResult{} : CallResult{error->code, error->peer, error->message});
      };
      ASSERT_EQ(tfc_plan_start(plan, static_cast<int32_t>(bucket), TFC_FLOAT32, &span, 1, end, ended, nullptr), TFC_OK);
    };
    std::promise<CallResult> agreed[2];
    for (size_t bucket = 0; bucket < 2; ++bucket) start(bucket, &agreed[bucket]);
    for (auto& one : agreed) ASSERT_EQ(one.get_future().get().code, TFC_OK);
    if (rank == 1) {
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // alive, and elsewhere
      return;
    }
    std::promise<CallResult> ended[2];
    start(1, &ended[1]);
    std::this_thread::sleep_for(std::chrono::milliseconds(2600));  // the limit of the other one passes well after this
    start(0, &ended[0]);
    for (auto& one : ended) {
      const CallResult result = one.get_future().get();
      EXPECT_EQ(result.code, TFC_DEADLINE_EXCEEDED) << result.message;
      EXPECT_EQ(result.peer, 1) << result.message;
    }
    over = true;
  });
}

TEST(TroubleTest, ABucketStartedAfterARankHasLeftEndsAtOnce) {
  for (const int32_t transport : {TFC_TRANSPORT_AUTO, TFC_TRANSPORT_TCP}) {
    WorldOptions options;
    options.transport = transport;
    RunWorld(options, [](int rank, tfc_communicator* communicator) {
      if (rank == 0) return;                                        // leaves
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // until that has become known here, as a rule
      tfc_plan* plan = Acquire(communicator);
      std::vector<float> values(3, 1);
      const tfc_span span{values.data(), values.data(), 3};
      tfc_error error{};
      error.struct_size = sizeof(error);
      std::promise<int> ended;
      const auto end = [](void* user, const tfc_error* why) {
        static_cast<std::promise<int>*>(user)->set_value(why == nullptr ? TFC_OK : why->code);
      };
      int code = tfc_plan_start(plan, 0, TFC_FLOAT32, &span, 1, end, &ended, &error);
      if (code == TFC_OK) {  // it was not known yet: this one finds out, and the next one knows
        EXPECT_EQ(ended.get_future().get(), TFC_PEER_LOST);
        code = tfc_plan_start(plan, 0, TFC_FLOAT32, &span, 1, end, &ended, &error);
      }
      EXPECT_EQ(code, TFC_PEER_LOST);
      EXPECT_EQ(error.peer, 0);
      tfc_plan_release(plan);
    });
  }
}

void* NoMemory(void*, const int64_t*, int32_t) { throw std::bad_alloc(); }

TEST(TroubleTest, AnExceptionInTheMiddleOfAnOperationEndsItOnAllRanks) {
  for (const int32_t transport : {TFC_TRANSPORT_AUTO, TFC_TRANSPORT_TCP}) {
    WorldOptions options;
    options.transport = transport;
    RunWorld(options, [](int rank, tfc_communicator* communicator) {
      if (rank != 0) {
        std::vector<float> values(3, 1);
        const tfc_span span{values.data(), values.data(), 3};
        const int64_t shape[1] = {3};
        tfc_request request = MakeRequest(TFC_ALLGATHER, TFC_FLOAT32, TFC_SUM);
        request.spans = &span;
        request.num_spans = 1;
        request.shape = shape;
        request.ndim = 1;
        request.allocate = &NoMemory;
        EXPECT_EQ(RunNow(communicator, request).code, TFC_RESOURCE_EXHAUSTED);
        EXPECT_EQ(RunNow(communicator, MakeRequest(TFC_BARRIER, TFC_FLOAT32, TFC_SUM)).code, TFC_RESOURCE_EXHAUSTED);
        return;
      }
      const auto begin = Clock::now();
      std::vector<float> values(9, 1);
      const tfc_span span{values.data(), nullptr, 3};
      const int64_t shape[1] = {3};
      tfc_request request = MakeRequest(TFC_ALLGATHER, TFC_FLOAT32, TFC_SUM);
      request.spans = &span;
      request.num_spans = 1;
      request.shape = shape;
      request.ndim = 1;
      std::vector<float> gathered;
      request.allocate_user = &gathered;
      request.allocate = [](void* user, const int64_t*, int32_t) -> void* {
        auto* memory = static_cast<std::vector<float>*>(user);
        memory->resize(6);
        return memory->data();
      };
      CallResult result = RunNow(communicator, request);
      if (result.code == TFC_OK) result = RunNow(communicator, MakeRequest(TFC_BARRIER, TFC_FLOAT32, TFC_SUM));
      EXPECT_EQ(result.code, TFC_RESOURCE_EXHAUSTED) << result.message;
      EXPECT_LT(SecondsSince(begin), 10);
    });
  }
}

TEST(TroubleTest, ACountThatOverflowsIsRefused) {
  WorldOptions options;
  options.size = 1;
  RunWorld(options, [](int, tfc_communicator* communicator) {
    float value = 1;
    const tfc_span span{&value, &value, int64_t{1} << 62};
    tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, TFC_SUM);
    request.spans = &span;
    request.num_spans = 1;
    EXPECT_EQ(RunNow(communicator, request).code, TFC_INVALID_ARGUMENT);
    const int64_t shape[1] = {1};
    request.shape = shape;
    request.ndim = -1;
    EXPECT_EQ(RunNow(communicator, request).code, TFC_INVALID_ARGUMENT);
  });
}

struct Releasing {
  tfc_communicator* communicator = nullptr;
  int shutdown_code = TFC_OK;
  std::promise<void> done;
};

// Against the rules, but easily done: the library must not join the thread that it is called on.
TEST(TroubleTest, ACallbackMayDropTheLastReference) {
  Listening listeners[2];
  const std::vector<std::string> addresses{listeners[0].address, listeners[1].address};
  Releasing releasing[2];
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      Releasing& mine = releasing[rank];
      ASSERT_EQ(Connect(rank, listeners[rank].listener, addresses, 20, &mine.communicator).code, TFC_OK);
      const tfc_request request = MakeRequest(TFC_BARRIER, TFC_FLOAT32, TFC_SUM, "b");
      const auto done = [](void* user, const tfc_error*) {
        auto* self = static_cast<Releasing*>(user);
        self->shutdown_code = tfc_communicator_shutdown(self->communicator, 1, nullptr);
        tfc_communicator_release(self->communicator);
        self->done.set_value();
      };
      ASSERT_EQ(tfc_submit(mine.communicator, &request, done, &mine, nullptr), TFC_OK);
      mine.done.get_future().get();
      EXPECT_EQ(mine.shutdown_code, TFC_FAILED_PRECONDITION);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace tfc::testing
