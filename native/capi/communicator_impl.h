// The implementation of tfc_communicator: builds its object graph, the only place that knows the concrete transport.
#ifndef TFCOLLECTIVE_CAPI_COMMUNICATOR_IMPL_H_
#define TFCOLLECTIVE_CAPI_COMMUNICATOR_IMPL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cpu_quota.h"
#include "base/cpu_set.h"
#include "base/event_fd.h"
#include "base/log.h"
#include "capi/cancellation.h"
#include "capi/world_ranks.h"
#include "collectives/shm/arena.h"
#include "collectives/shm/fd_exchange.h"
#include "collectives/transport/tcp/tcp_listener.h"
#include "collectives/transport/tcp/tcp_transport.h"
#include "control/control_connections.h"
#include "device/nccl/device_communicator.h"
#include "executor/engine.h"
#include "tfcollective/tfcollective.h"

namespace tfc {

// The listener of a process before it is connected, and the address that it gives to its peers.
struct ListenerBundle {
  TcpListener tcp;
  FdServer fds;
  std::string node_id;

  static Result<std::unique_ptr<ListenerBundle>> Create(const std::string& host, const std::string& node_id,
                                                        PortRange ports);
  // "3;<host:port>;<name of the Unix socket>;<CPUs of the calling thread>;<its CPU quota>;<node id>".
  std::string Address() const;
};

// One peer's address, parsed.
struct PeerAddress {
  SocketAddress tcp;
  std::string fd_server;
  CpuSet cpus;
  CpuQuota quota;
  std::string node_id;

  static Result<PeerAddress> Parse(const std::string& text);
};

// True if these ranks, those of one node, are more than the processors that they may use, all together: waiting ranks
// then give their processor away at once.
bool IsCrowded(const std::vector<PeerAddress>& ranks);

struct CommunicatorOptions {
  int rank = 0;
  std::vector<std::string> addresses;
  JobKey key;
  uint64_t generation = 0;
  double connect_timeout_s = 120;
  double op_timeout_s = 300;
  double stall_warning_s = 10;
  bool shared_memory = true;
  int spin_us = -1;
  bool probe_link = true;
  Log log;
  WorldRanks world_ranks;
  Cancellation* cancellation = nullptr;  // borrowed until the set-up has ended

  int size() const { return static_cast<int>(addresses.size()); }
};

class CommunicatorImpl {
 public:
  // Returns when all ranks are connected. `bundle` may be nullptr in a world of one.
  static Result<std::shared_ptr<CommunicatorImpl>> Create(std::unique_ptr<ListenerBundle> bundle,
                                                          const CommunicatorOptions& options);
  ~CommunicatorImpl();
  CommunicatorImpl(const CommunicatorImpl&) = delete;
  CommunicatorImpl& operator=(const CommunicatorImpl&) = delete;

  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }
  DeviceCommunicator& devices() { return *devices_; }
  // Leaves in order; not on a thread of its own: see OnOwnThread. False: a thread is stuck in the CUDA driver or in
  // NCCL, and may still use the communicator.
  bool Shutdown(double timeout_s);
  bool OnOwnThread() const;
  bool uses_shared_memory() const { return arena_ != nullptr; }
  const WorldRanks& world_ranks() const { return world_ranks_; }

 private:
  CommunicatorImpl() = default;
  static void Drop(CommunicatorImpl* impl);
  static void End(CommunicatorImpl* impl);
  void MakeEngine(const CommunicatorOptions& options, const std::vector<PeerAddress>& peers);
  Status Connect(std::unique_ptr<ListenerBundle> bundle, const CommunicatorOptions& options,
                 const std::vector<PeerAddress>& peers);
  Status SetUp(ListenerBundle* bundle, const CommunicatorOptions& options, const std::vector<PeerAddress>& peers,
               Deadline deadline);
  Status ShareMemory(FdServer* server, const CommunicatorOptions& options, const std::vector<PeerAddress>& peers,
                     Deadline deadline);
  Status GiveUp(const Status& why);
  Status StartEngine(const CommunicatorOptions& options, const std::vector<PeerAddress>& peers);

  WorldRanks world_ranks_;
  // Destroyed from the last to the first: the engine uses everything above it, the control connections call it.
  EventFd cancel_;  // readable once the engine has failed
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<TcpTransport> transport_;
  std::unique_ptr<ControlConnections> control_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<DeviceCommunicator> devices_;
};

}  // namespace tfc

struct tfc_communicator {
  std::shared_ptr<tfc::CommunicatorImpl> impl;
};

struct tfc_plan {
  std::shared_ptr<tfc::CommunicatorImpl> impl;
  std::shared_ptr<tfc::Plan> plan;
};

#endif  // TFCOLLECTIVE_CAPI_COMMUNICATOR_IMPL_H_
