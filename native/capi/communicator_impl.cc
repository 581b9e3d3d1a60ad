#include "capi/communicator_impl.h"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "control/timing.h"

namespace tfc {
namespace {

constexpr char kAddressVersion[] = "3";
constexpr size_t kAddressFields = 6;
// Longer than an operation on a few kilobytes, shorter than a scheduler's time slice.
constexpr int kCallerSpinMicros = 100;
constexpr int kProgressSpinMicros = 50;

Topology TopologyOf(const CommunicatorOptions& options, const std::vector<PeerAddress>& peers) {
  std::vector<std::string> nodes;
  for (const PeerAddress& peer : peers) nodes.push_back(peer.node_id);
  if (nodes.empty()) nodes.assign(1, "");
  return MakeTopology(options.rank, nodes);
}

// Thousandths of processors that the ranks may use together: those that they may run on, or what their control groups
// leave them, if that is less.
int64_t Millicores(const std::vector<PeerAddress>& ranks) {
  CpuSet cpus;
  std::map<uint64_t, int64_t> quotas;
  bool limited = !ranks.empty();
  for (const PeerAddress& rank : ranks) {
    cpus.Add(rank.cpus);
    limited = limited && rank.quota.limited();
    quotas[rank.quota.group] = rank.quota.millicores;
  }
  const int64_t all = int64_t{1000} * std::max(1, cpus.count());
  if (!limited) return all;
  int64_t allowed = 0;
  for (const auto& [group, millicores] : quotas) allowed += millicores;
  return std::min(all, allowed);
}

// Whether the ranks of this node are more than the processors that they may use, all together: ranks that are
// pinned to a processor each have one each. All ranks of a node find the same.
bool Crowded(const Topology& topology, const std::vector<PeerAddress>& peers) {
  std::vector<PeerAddress> here;
  for (const int rank : topology.local_ranks)
    if (static_cast<size_t>(rank) < peers.size()) here.push_back(peers[static_cast<size_t>(rank)]);
  return IsCrowded(here);
}

// An event descriptor for each of `count` ranks; adds them to `fds`, too.
Result<std::vector<EventFd>> MakeBells(size_t count, std::vector<int>* fds) {
  std::vector<EventFd> bells;
  while (bells.size() < count) {
    auto bell = EventFd::Create();
    if (!bell.ok()) return bell.status();
    fds->push_back(bell.value().fd());
    bells.push_back(bell.Take());
  }
  return bells;
}

EngineOptions EngineOptionsOf(const CommunicatorOptions& options, const std::vector<PeerAddress>& peers) {
  EngineOptions engine;
  engine.topology = TopologyOf(options, peers);
  for (size_t rank = 0; rank < peers.size(); ++rank)
    engine.peers.push_back("rank " + std::to_string(rank) + " (" + peers[rank].tcp.ToString() + ")");
  engine.op_timeout_s = options.op_timeout_s;
  engine.stall_warning_s = options.stall_warning_s;
  engine.log = options.log;
  engine.probe_link = options.probe_link;
  // A thread that spins while a peer has no core keeps that peer from answering.
  const bool crowded = Crowded(engine.topology, peers);
  engine.caller_spin_us = options.spin_us >= 0 ? options.spin_us : (crowded ? 0 : kCallerSpinMicros);
  engine.progress_spin_us = options.spin_us >= 0 ? options.spin_us : (crowded ? 0 : kProgressSpinMicros);
  return engine;
}

// Stays reachable, so that a leak checker does not report it.
void LeakUntilProcessExit(CommunicatorImpl* impl) {
  static auto* const kept = new std::vector<CommunicatorImpl*>();
  static auto* const mutex = new Mutex();
  const MutexLock lock(*mutex);
  kept->push_back(impl);
}

}  // namespace

Result<std::unique_ptr<ListenerBundle>> ListenerBundle::Create(const std::string& host, const std::string& node_id,
                                                               PortRange ports) {
  auto tcp = TcpListener::Create(host, ports);
  if (!tcp.ok()) return tcp.status();
  auto fds = FdServer::Create();
  if (!fds.ok()) return fds.status();
  return std::make_unique<ListenerBundle>(ListenerBundle{tcp.Take(), fds.Take(), node_id});
}

std::string ListenerBundle::Address() const {
  return std::string(kAddressVersion) + ";" + tcp.address().ToString() + ";" + fds.name() + ";" +
         CpuSet::Usable().ToString() + ";" + CpuQuota::Current().ToString() + ";" + node_id;
}

Result<PeerAddress> PeerAddress::Parse(const std::string& text) {
  // The node id comes last and may hold any character.
  std::vector<std::string> fields;
  size_t begin = 0;
  for (size_t end = text.find(';'); fields.size() < kAddressFields - 1 && end != std::string::npos;
       end = text.find(';', begin)) {
    fields.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (fields.size() < kAddressFields - 1 || fields[0] != kAddressVersion)
    return Status(Code::kInvalidArgument, "'" + text + "' is no address of a listener of this version");
  auto tcp = SocketAddress::Parse(fields[1]);
  if (!tcp.ok()) return tcp.status();
  auto cpus = CpuSet::Parse(fields[3]);
  if (!cpus.ok()) return cpus.status();
  auto quota = CpuQuota::Parse(fields[4]);
  if (!quota.ok()) return quota.status();
  return PeerAddress{tcp.Take(), fields[2], cpus.Take(), quota.Take(), text.substr(begin)};
}

bool IsCrowded(const std::vector<PeerAddress>& ranks) {
  return int64_t{1000} * static_cast<int64_t>(ranks.size()) > Millicores(ranks);
}

Result<std::shared_ptr<CommunicatorImpl>> CommunicatorImpl::Create(std::unique_ptr<ListenerBundle> bundle,
                                                                   const CommunicatorOptions& options) {
  std::vector<PeerAddress> peers;
  for (const std::string& text : options.addresses) {
    if (options.size() == 1) break;
    auto peer = PeerAddress::Parse(text);
    if (!peer.ok()) return peer.status();
    peers.push_back(peer.Take());
  }
  std::shared_ptr<CommunicatorImpl> impl(new CommunicatorImpl(), &CommunicatorImpl::Drop);
  impl->world_ranks_ = options.world_ranks;
  if (options.size() == 1) {
    impl->MakeEngine(options, peers);
    TFC_RETURN_IF_ERROR(impl->engine_->Start({}, nullptr, nullptr));
    return impl;
  }
  if (bundle == nullptr) return Status(Code::kInvalidArgument, "a world of more than one rank needs a listener");
  const Status connected = impl->Connect(std::move(bundle), options, peers);
  if (!connected.ok()) return impl->GiveUp(connected);
  return impl;
}

void CommunicatorImpl::MakeEngine(const CommunicatorOptions& options, const std::vector<PeerAddress>& peers) {
  EngineOptions engine_options = EngineOptionsOf(options, peers);
  DeviceCommunicatorOptions device_options;
  device_options.op_timeout_s = options.op_timeout_s;
  device_options.stall_warning_s = options.stall_warning_s;
  device_options.spin_us = engine_options.progress_spin_us;
  device_options.log = options.log;
  engine_options.on_failure = [this] {
    cancel_.Signal();
    if (control_ != nullptr) control_->CancelStart();
  };
  engine_ = std::make_unique<Engine>(std::move(engine_options));
  devices_ = std::make_unique<DeviceCommunicator>(engine_.get(), std::move(device_options));
}

// The peers wait for this rank, so they must hear of it, unless one of them reported it.
Status CommunicatorImpl::GiveUp(const Status& why) {
  if (engine_ == nullptr) return why;
  // Who gives up closes its sockets; that may be seen before the reason has come.
  const bool broken_link = why.code() == Code::kPeerLost || why.code() == Code::kIo;
  const Status first = engine_->failure().WaitFor(Deadline::After(broken_link ? timing::kCause : 0));
  if (!first.ok()) return first;
  engine_->Abort("it could not set the communicator up: " + why.message());
  return why;
}

// A callback that drops the last reference runs on a thread that the destructor has to join.
void CommunicatorImpl::Drop(CommunicatorImpl* impl) {
  if (impl->engine_ != nullptr && impl->OnOwnThread()) {
    std::thread([impl] { End(impl); }).detach();
  } else {
    End(impl);
  }
}

// A thread that does not come back from the driver may still use it.
void CommunicatorImpl::End(CommunicatorImpl* impl) {
  if (impl->engine_ == nullptr || impl->Shutdown(timing::kShutdown)) {
    delete impl;
  } else {
    LeakUntilProcessExit(impl);
  }
}

CommunicatorImpl::~CommunicatorImpl() = default;

bool CommunicatorImpl::OnOwnThread() const { return engine_->OnOwnThread() || devices_->OnOwnThread(); }

bool CommunicatorImpl::Shutdown(double timeout_s) {
  const Deadline deadline = Deadline::After(timeout_s);
  const bool ended = devices_->Shutdown(timeout_s);
  engine_->Shutdown(deadline.Left());
  return ended;
}

Status CommunicatorImpl::Connect(std::unique_ptr<ListenerBundle> bundle, const CommunicatorOptions& options,
                                 const std::vector<PeerAddress>& peers) {
  const Deadline deadline = Deadline::After(options.connect_timeout_s);
  auto cancel = EventFd::Create();
  if (!cancel.ok()) return cancel.status();
  cancel_ = cancel.Take();
  MakeEngine(options, peers);
  ControlOptions control_options;
  control_options.self = Identity{options.rank, options.size(), options.generation};
  control_options.root = peers[0].tcp;
  control_options.key = options.key;
  control_options.log = options.log;
  auto control = ControlConnections::Create(control_options, std::move(bundle->tcp), engine_.get());
  if (!control.ok()) return control.status();
  control_ = control.Take();
  engine_->Attach(control_.get());
  // The failure ends all waits of the set-up.
  Cancellation::Scope scope(options.cancellation, [this](const std::string& cause) { engine_->Abort(cause); });
  TFC_RETURN_IF_ERROR(SetUp(bundle.get(), options, peers, deadline));
  return scope.Close() ? engine_->failure().Get() : Status::Ok();
}

Status CommunicatorImpl::SetUp(ListenerBundle* bundle, const CommunicatorOptions& options,
                               const std::vector<PeerAddress>& peers, Deadline deadline) {
  TFC_RETURN_IF_ERROR(control_->Start(deadline));
  const double extra = options.rank == 0 ? 0 : timing::kRootGrace;
  const Deadline limit = Deadline::After(deadline.Left() + extra);
  if (options.shared_memory) {
    const Status shared = ShareMemory(&bundle->fds, options, peers, limit);
    if (!shared.ok()) return shared.WithContext("shared memory");
  }
  TFC_RETURN_IF_ERROR(StartEngine(options, peers));
  TFC_RETURN_IF_ERROR(engine_->Synchronise(limit));
  return engine_->ProbeLink(limit);
}

Status CommunicatorImpl::ShareMemory(FdServer* server, const CommunicatorOptions& options,
                                     const std::vector<PeerAddress>& peers, Deadline deadline) {
  const Topology& topology = engine_->topology();
  const bool useful = std::any_of(topology.node_ranks.begin(), topology.node_ranks.end(),
                                  [](const auto& ranks) { return ranks.size() > 1; });
  if (!useful) return Status::Ok();
  ArenaShape shape;
  shape.local_rank = topology.local_rank;
  shape.local_size = topology.local_size();
  // Ranks that have connections read them while they wait in shared memory, so they have to be woken there.
  const auto bells = static_cast<size_t>(topology.nodes() > 1 ? topology.local_size() : 0);
  Status refused;
  if (topology.local_rank == 0) {
    shape.crowded = Crowded(topology, peers);
    auto arena = Arena::Create(shape);
    if (arena.ok()) {
      arena_ = arena.Take();
    } else {
      refused = arena.status();
    }
  }
  // Which algorithms the ranks choose depends on it: all of them share memory, or none.
  Status objection;
  TFC_RETURN_IF_ERROR(engine_->Synchronise(deadline, refused, &objection));
  if (!objection.ok()) {
    arena_.reset();
    if (topology.rank == 0)
      options.log.Warning("shared memory is not used, all data goes over TCP: " + objection.message());
    return Status::Ok();
  }
  if (topology.local_rank == 0) {
    std::vector<int> fds{arena_->fd()};
    auto made = MakeBells(bells, &fds);
    if (!made.ok()) return made.status();
    if (bells > 0) arena_->HangBells(made.Take());
    return server->Serve(fds, topology.local_size() - 1, options.key, cancel_.fd(), deadline);
  }
  const auto leader = static_cast<size_t>(topology.local_ranks.front());
  auto fetched = FetchFds(peers[leader].fd_server, 1 + bells, options.key, cancel_.fd(), deadline);
  if (!fetched.ok()) return fetched.status();
  std::vector<UniqueFd> fds = fetched.Take();
  auto arena = Arena::Attach(shape, std::move(fds.front()));
  if (!arena.ok()) return arena.status();
  arena_ = arena.Take();
  std::vector<EventFd> received;
  for (size_t rank = 0; rank < bells; ++rank) received.emplace_back(std::move(fds[1 + rank]));
  if (bells > 0) arena_->HangBells(std::move(received));
  return Status::Ok();
}

Status CommunicatorImpl::StartEngine(const CommunicatorOptions& options, const std::vector<PeerAddress>& peers) {
  TcpTransportOptions tcp;
  tcp.self = Identity{options.rank, options.size(), options.generation};
  tcp.key = options.key;
  for (const PeerAddress& peer : peers) tcp.addresses.push_back(peer.tcp);
  tcp.connect_seconds = options.connect_timeout_s;
  tcp.spin_us = engine_->progress_spin_us();
  tcp.bell = arena_ == nullptr ? nullptr : arena_->bell();
  tcp.log = options.log;
  auto transport = TcpTransport::Create(tcp);
  if (!transport.ok()) return transport.status();
  transport_ = transport.Take();
  PolledTransport polled;
  polled.transport = transport_.get();
  polled.poll = [t = transport_.get()](Deadline deadline, bool spin) { return t->Poll(deadline, spin); };
  polled.wake = [t = transport_.get()] { t->Wake(); };
  const auto add = [t = transport_.get(), log = options.log](int peer, UniqueFd fd) {
    const Status added = t->AddConnection(peer, std::move(fd));
    if (!added.ok())
      log.Warning("a data connection of rank " + std::to_string(peer) + " was refused: " + added.message());
  };
  return engine_->Start(std::move(polled), arena_.get(), add);
}

}  // namespace tfc
