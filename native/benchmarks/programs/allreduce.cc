// The timing loop of `tfcollective bench allreduce` without Python: one source, two programs.
//
//   allreduce     --library LIBTFCOLLECTIVE --ranks N [--transport auto|tcp] [OPTIONS] POINT...
//   allreduce_mpi [OPTIONS] POINT...        (compiled with -DTFC_BENCHMARK_MPI, started by mpirun)
//
//   OPTIONS  --dtype float32|float64|int32|int64, --flush BYTES, --pin, --require-shm
//   POINT    hot|cold:BYTES:ITERATIONS
//
// Per iteration: new inputs are written, caches emptied at cold points, a barrier, the clock, the all-reduce, the
// clock, and every element is compared. Times are means over the ranks; rank 0 prints a line of JSON for each point.
// Processor time is that of a further loop without anything else inside.
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#ifdef TFC_BENCHMARK_MPI
#include <mpi.h>
#else
#include <dlfcn.h>

#include <atomic>

#include "tfcollective/tfcollective.h"
#endif

namespace {

constexpr int kWarmUp = 5;
constexpr int kValues = 7;
constexpr int kCpuCalls = 100;
constexpr int kUsage = 64;

struct Point {
  bool cold;
  size_t bytes;
  int iterations;
};

struct Options {
  std::string library, transport = "auto", dtype = "float32";
  int ranks = 1;
  size_t flush = 0;
  bool pin = false, require_shm = false;
  std::vector<Point> points;
};

[[noreturn]] void Die(const std::string& message, int code = 1) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(code);
}

double Now(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Stays on one of the cores that this process may use, chosen by rank.
void Pin(int rank) {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  sched_getaffinity(0, sizeof(usable), &usable);
  int place = rank % CPU_COUNT(&usable);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &usable) || place-- > 0) continue;
    cpu_set_t mine;
    CPU_ZERO(&mine);
    CPU_SET(core, &mine);
    sched_setaffinity(0, sizeof(mine), &mine);
    return;
  }
}

Point ParsePoint(const std::string& text) {
  char cache[8] = {};
  size_t bytes = 0;
  int iterations = 0;
  const bool read = std::sscanf(text.c_str(), "%4[a-z]:%zu:%d", cache, &bytes, &iterations) == 3;
  const bool cold = std::strcmp(cache, "cold") == 0;
  if (!read || (!cold && std::strcmp(cache, "hot") != 0) || iterations < 1) Die("not a point: " + text, kUsage);
  return {cold, bytes, iterations};
}

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 >= argc) Die(name + " needs a value", kUsage);
      return argv[++i];
    };
    if (name == "--library")
      options.library = value();
    else if (name == "--transport")
      options.transport = value();
    else if (name == "--dtype")
      options.dtype = value();
    else if (name == "--ranks")
      options.ranks = std::atoi(value().c_str());
    else if (name == "--flush")
      options.flush = std::strtoull(value().c_str(), nullptr, 10);
    else if (name == "--pin")
      options.pin = true;
    else if (name == "--require-shm")
      options.require_shm = true;
    else if (name.rfind("--", 0) == 0)
      Die("unknown option " + name, kUsage);
    else
      options.points.push_back(ParsePoint(name));
  }
  if (options.points.empty() || options.ranks < 1) Die("at least one point and one rank are needed", kUsage);
  return options;
}

#ifdef TFC_BENCHMARK_MPI

template <typename T>
MPI_Datatype MpiType();
template <>
MPI_Datatype MpiType<float>() {
  return MPI_FLOAT;
}
template <>
MPI_Datatype MpiType<double>() {
  return MPI_DOUBLE;
}
template <>
MPI_Datatype MpiType<int32_t>() {
  return MPI_INT32_T;
}
template <>
MPI_Datatype MpiType<int64_t>() {
  return MPI_INT64_T;
}

// A rank's place in MPI's world. MPI ends all ranks when a call fails.
class World {
 public:
  World() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  int rank() const { return rank_; }
  int size() const { return size_; }
  void Barrier() { MPI_Barrier(MPI_COMM_WORLD); }
  template <typename T>
  void Prepare(const std::vector<T>& input, std::vector<T>* output) {
    input_ = input.data();
    output_ = output->data();
    count_ = static_cast<int>(input.size());
    type_ = MpiType<T>();
  }
  void AllReduce() { MPI_Allreduce(input_, output_, count_, type_, MPI_SUM, MPI_COMM_WORLD); }

 private:
  int rank_ = 0, size_ = 1, count_ = 0;
  const void* input_ = nullptr;
  void* output_ = nullptr;
  MPI_Datatype type_ = MPI_FLOAT;
};

#else

template <typename T>
tfc_dtype TfcType();
template <>
tfc_dtype TfcType<float>() {
  return TFC_FLOAT32;
}
template <>
tfc_dtype TfcType<double>() {
  return TFC_FLOAT64;
}
template <>
tfc_dtype TfcType<int32_t>() {
  return TFC_INT32;
}
template <>
tfc_dtype TfcType<int64_t>() {
  return TFC_INT64;
}

constexpr int kMaxRanks = 256;
constexpr uint8_t kKey[32] = {7, 7, 7};  // both ends of these connections are this program

// What the ranks tell each other before they are connected.
struct Rendezvous {
  char addresses[kMaxRanks][512];
  std::atomic<int> listening;
};

struct Library {
  decltype(&tfc_listener_create) listener_create;
  decltype(&tfc_listener_address) listener_address;
  decltype(&tfc_communicator_create) communicator_create;
  decltype(&tfc_communicator_get_info) get_info;
  decltype(&tfc_communicator_shutdown) shutdown;
  decltype(&tfc_call_prepare) call_prepare;
  decltype(&tfc_call_run) call_run;
};

Library Load(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW);
  if (handle == nullptr) Die(std::string("cannot load the library: ") + dlerror());
  const auto find = [&](auto* function, const char* name) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)> >(dlsym(handle, name));
    if (*function == nullptr) Die(std::string("the library has no ") + name);
  };
  Library library{};
  find(&library.listener_create, "tfc_listener_create");
  find(&library.listener_address, "tfc_listener_address");
  find(&library.communicator_create, "tfc_communicator_create");
  find(&library.get_info, "tfc_communicator_get_info");
  find(&library.shutdown, "tfc_communicator_shutdown");
  find(&library.call_prepare, "tfc_call_prepare");
  find(&library.call_run, "tfc_call_run");
  return library;
}

// A rank's place in tfcollective's world.
class World {
 public:
  World(const Options& options, Rendezvous* rendezvous, int rank)
      : library_(Load(options.library)), rank_(rank), size_(options.ranks) {
    error_.struct_size = sizeof(error_);
    Connect(options, rendezvous);
    barrier_ = Prepare(TFC_BARRIER, TFC_FLOAT32, nullptr);
  }
  ~World() { library_.shutdown(communicator_, 10, nullptr); }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  void Barrier() { Check(library_.call_run(barrier_, nullptr, nullptr, &error_)); }
  template <typename T>
  void Prepare(const std::vector<T>& input, std::vector<T>* output) {
    span_ = {input.data(), output->data(), static_cast<int64_t>(input.size())};
    allreduce_ = Prepare(TFC_ALLREDUCE, TfcType<T>(), &span_);
  }
  void AllReduce() { Check(library_.call_run(allreduce_, span_.input, span_.output, &error_)); }

 private:
  void Check(tfc_code code) {
    if (code != TFC_OK) Die(error_.message);
  }

  // Lives as long as the process: there are a few.
  tfc_call* Prepare(int32_t collective, int32_t dtype, const tfc_span* span) {
    tfc_request request{};
    request.struct_size = sizeof(request);
    request.collective = collective;
    request.dtype = dtype;
    request.op = TFC_SUM;
    request.prescale = request.postscale = 1;
    request.name = "";
    request.spans = span;
    request.num_spans = span == nullptr ? 0 : 1;
    tfc_call* call = nullptr;
    Check(library_.call_prepare(communicator_, &request, &call, &error_));
    return call;
  }

  void Connect(const Options& options, Rendezvous* rendezvous) {
    tfc_listener_options listen{sizeof(tfc_listener_options), "127.0.0.1", "node", 0, 0};
    tfc_listener* listener = nullptr;
    Check(library_.listener_create(&listen, &listener, &error_));
    Check(library_.listener_address(listener, rendezvous->addresses[rank_], sizeof(rendezvous->addresses[rank_]),
                                    &error_));
    rendezvous->listening.fetch_add(1);
    while (rendezvous->listening.load() < size_) usleep(100);  // forks of one process, which wait for nothing else yet
    std::vector<const char*> addresses(size_);
    for (int r = 0; r < size_; ++r) addresses[r] = rendezvous->addresses[r];
    tfc_communicator_options wanted{};
    wanted.struct_size = sizeof(wanted);
    wanted.rank = rank_;
    wanted.size = size_;
    wanted.addresses = addresses.data();
    wanted.key = kKey;
    wanted.key_size = sizeof(kKey);
    wanted.connect_timeout_s = 30;
    wanted.op_timeout_s = 60;
    wanted.transport = options.transport == "tcp" ? TFC_TRANSPORT_TCP : TFC_TRANSPORT_AUTO;
    wanted.spin_us = -1;
    Check(library_.communicator_create(listener, &wanted, &communicator_, &error_));
    tfc_communicator_info info{};
    info.struct_size = sizeof(info);
    Check(library_.get_info(communicator_, &info, &error_));
    if (options.require_shm && !info.uses_shared_memory) Die("the ranks do not share memory");
  }

  Library library_;
  int rank_, size_;
  tfc_communicator* communicator_ = nullptr;
  tfc_error error_{};
  tfc_span span_{};
  tfc_call* barrier_ = nullptr;
  tfc_call* allreduce_ = nullptr;
};

#endif

void Sum(World* world, std::vector<double>* values) {
  std::vector<double> sums(values->size());
  world->Prepare(*values, &sums);
  world->AllReduce();
  values->swap(sums);
}

// The seconds of one all-reduce whose inputs were written with `step`.
template <typename T>
double Iterate(World* world, const std::vector<T>& output, int step) {
  const double begin = Now(CLOCK_MONOTONIC);
  world->AllReduce();
  const double seconds = Now(CLOCK_MONOTONIC) - begin;
  const T expected = static_cast<T>(world->size() * (world->size() - 1) / 2 + world->size() * step);
  const bool right = std::all_of(output.begin(), output.end(), [&](T element) { return element == expected; });
  if (!right) Die("wrong result on rank " + std::to_string(world->rank()));
  return seconds;
}

void Print(const Point& point, const std::vector<double>& totals, int size) {
  std::printf("{\"cache\": \"%s\", \"bytes\": %zu, \"times\": [", point.cold ? "cold" : "hot", point.bytes);
  for (int i = 0; i < point.iterations; ++i) std::printf("%s%.4e", i == 0 ? "" : ", ", totals[i] / size);
  std::printf("], \"cpu\": %.4e, \"overhead\": 0}\n", totals[point.iterations]);
  std::fflush(stdout);
}

template <typename T>
void Measure(World* world, const Point& point, std::vector<int64_t>* flush) {
  const size_t count = std::max<size_t>(1, point.bytes / sizeof(T));
  std::vector<T> input(count), output(count);
  std::vector<double> times;
  for (int number = 0; number < kWarmUp + point.iterations; ++number) {
    std::fill(input.begin(), input.end(), static_cast<T>(world->rank() + number % kValues));
    if (point.cold)
      for (int64_t& word : *flush) ++word;
    world->Prepare(input, &output);
    world->Barrier();
    const double seconds = Iterate(world, output, number % kValues);
    if (number >= kWarmUp) times.push_back(seconds);
  }
  const int calls = std::min(point.iterations, kCpuCalls);
  world->Barrier();
  const double begin = Now(CLOCK_PROCESS_CPUTIME_ID);
  for (int call = 0; call < calls; ++call) world->AllReduce();
  times.push_back((Now(CLOCK_PROCESS_CPUTIME_ID) - begin) / calls);
  Sum(world, &times);
  if (world->rank() == 0) Print(point, times, world->size());
}

void MeasureAll(World* world, const Options& options) {
  std::vector<int64_t> flush(options.flush / sizeof(int64_t) + 1);
  for (const Point& point : options.points) {
    if (options.dtype == "float32")
      Measure<float>(world, point, &flush);
    else if (options.dtype == "float64")
      Measure<double>(world, point, &flush);
    else if (options.dtype == "int32")
      Measure<int32_t>(world, point, &flush);
    else if (options.dtype == "int64")
      Measure<int64_t>(world, point, &flush);
    else
      Die("this program does not know the dtype " + options.dtype, kUsage);
  }
}

}  // namespace

#ifdef TFC_BENCHMARK_MPI

int main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  const char* local = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  if (options.pin && local != nullptr) Pin(std::atoi(local));
  MPI_Init(&argc, &argv);
  {
    World world;
    MeasureAll(&world, options);
  }
  MPI_Finalize();
  return 0;
}

#else

namespace {

int RankMain(const Options& options, Rendezvous* rendezvous, int rank) {
  if (options.pin) Pin(rank);
  World world(options, rendezvous, rank);
  MeasureAll(&world, options);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  if (options.library.empty() || options.ranks > kMaxRanks) Die("--library is needed, and at most 256 ranks", kUsage);
  void* memory = mmap(nullptr, sizeof(Rendezvous), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Die("no memory");
  auto* rendezvous = new (memory) Rendezvous();
  std::vector<pid_t> children;
  for (int rank = 1; rank < options.ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) Die("cannot fork");
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      return RankMain(options, rendezvous, rank);
    }
    children.push_back(child);
  }
  int result = RankMain(options, rendezvous, 0);
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) result = 1;
  }
  return result;
}

#endif
