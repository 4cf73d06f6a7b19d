package stack

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/services/deploys"
	"lockstep.internal/services/dispatcher"
	"lockstep.internal/services/state"
	"lockstep.internal/services/watcher"
)

// Names of the listeners of services.
const (
	ListenerAPI = "api"
	ListenerOps = "ops"
)

// anyPort is a loopback address with a free port.
const anyPort = "127.0.0.1:0"

// telemetry of a service: in this process it writes to the log; a program writes to its output, which is copied to
// the log.
func (s *Stack) telemetry() telemetry.Config {
	cfg := telemetry.DefaultConfig()
	if s.opts.Programs == "" {
		cfg.LogFormat, cfg.Out = "text", s.log
	}
	return cfg
}

// launcher returns the function that starts services of this kind.
func (s *Stack) launcher(kind string) func(string, configuration) (*Run, error) {
	if s.opts.Programs == "" {
		return inProcess
	}
	return program{path: filepath.Join(s.opts.Programs, kind), dir: s.servicesDir(), log: s.log}.launch
}

// run adds a service to the stack and starts it.
func (s *Stack) run(ctx context.Context, added *service) error {
	s.mu.Lock()
	s.services = append(s.services, added)
	s.mu.Unlock()
	return added.start(ctx)
}

func (s *Stack) startState(ctx context.Context) error {
	done := s.progress.step(State)
	if err := s.run(ctx, s.state(State, s.opts.APIListen)); err != nil {
		return err
	}
	s.apiURL = "http://" + s.Address(State, ListenerAPI)
	done("API on %s", s.apiURL)
	return nil
}

func (s *Stack) state(name, listen string) *service {
	configure := func(addresses map[string]string) configuration {
		cfg := state.DefaultConfig()
		cfg.Ops.Listen, cfg.API.Listen = anyPort, addresses[ListenerAPI]
		cfg.Telemetry = s.telemetry()
		cfg.Cell.Name, cfg.Cell.Number = string(s.opts.Cell), s.opts.CellNumber
		cfg.Database.URLFile = config.SecretFile(s.databaseURLFile(State))
		cfg.NATS.URL = config.URL(s.natsURL())
		cfg.Agents.KeysDir = s.natsDir()
		cfg.Secrets.SealSeedFile = config.SecretFile(s.keys.SealSeedFile)
		cfg.Secrets.DigestKeyFile = config.SecretFile(s.keys.DigestKeyFile)
		cfg.Bootstrap.AdminTokenFile = config.SecretFile(s.keys.AdminTokenFile)
		if s.opts.Image != "" {
			cfg.Workspace.Image = s.opts.Image
		}
		s.configureEntering(&cfg)
		s.opts.Configure(name, &cfg)
		return configuration{
			settings: &cfg, common: &cfg.Config, main: func(ctx context.Context) error { return state.Main(ctx, cfg) },
		}
	}
	return &service{
		name: name, configure: configure, launch: s.launcher(State),
		listen:     map[string]string{ListenerAPI: listen},
		newReplica: func(name string) *service { return s.state(name, anyPort) },
	}
}

func (s *Stack) startDeploys(ctx context.Context) error {
	done := s.progress.step(Deploys)
	if err := s.run(ctx, s.deploys(Deploys, s.opts.DeploysListen)); err != nil {
		return err
	}
	done("API on %s", s.DeploysURL())
	return nil
}

// DeploysURL is where the API of deploys listens; empty without that service.
func (s *Stack) DeploysURL() string {
	if !s.opts.Workloads.Enabled {
		return ""
	}
	return "http://" + s.Address(Deploys, ListenerAPI)
}

func (s *Stack) deploys(name, listen string) *service {
	configure := func(addresses map[string]string) configuration {
		cfg := deploys.DefaultConfig()
		cfg.Ops.Listen, cfg.API.Listen = anyPort, addresses[ListenerAPI]
		cfg.Telemetry = s.telemetry()
		cfg.Cell.Name = string(s.opts.Cell)
		cfg.Database.URLFile = config.SecretFile(s.databaseURLFile(Deploys))
		cfg.NATS.URL = config.URL(s.natsURL())
		cfg.NATS.NKeySeedFile = config.SecretFile(natsauth.SeedFile(s.natsDir(), natsauth.PrincipalDeploys))
		s.opts.Configure(name, &cfg)
		return configuration{
			settings: &cfg, common: &cfg.Config, main: func(ctx context.Context) error { return deploys.Main(ctx, cfg) },
		}
	}
	return &service{
		name: name, configure: configure, launch: s.launcher(Deploys),
		listen:     map[string]string{ListenerAPI: listen},
		newReplica: func(name string) *service { return s.deploys(name, anyPort) },
	}
}

// Agent of a stack.
type Agent struct {
	ID              int64
	Name            string
	ProjectID       int64
	CredentialsFile string
}

// WatcherOf is the name of an agent's watcher.
func WatcherOf(agent string) string { return Watcher + "-" + agent }

// DispatcherOf is the name of an agent's dispatcher.
func DispatcherOf(agent string) string { return Dispatcher + "-" + agent }

// AddAgent registers an agent, or uses the one of its existing credentials file, and starts its watcher and dispatcher
// and, where there are relays, its relay agent.
func (s *Stack) AddAgent(ctx context.Context, project int64, name, kubeconfig string) (Agent, error) {
	done := s.progress.step("agent")
	agent, err := s.ensureAgent(ctx, Agent{
		Name: name, ProjectID: project, CredentialsFile: filepath.Join(s.dir, "agents", name+".json"),
	})
	if err != nil {
		return Agent{}, fmt.Errorf("agent %s: %w", name, err)
	}
	watcherErr := s.run(ctx, s.watcher(WatcherOf(name), agent, kubeconfig))
	dispatcherErr := s.run(ctx, s.dispatcher(DispatcherOf(name), agent, kubeconfig))
	relayErr := s.startRelayAgents(ctx, agent, kubeconfig)
	if err := errors.Join(watcherErr, dispatcherErr, relayErr); err != nil {
		return Agent{}, fmt.Errorf("agent %s: %w", name, err)
	}
	s.mu.Lock()
	s.agents = append(s.agents, agent)
	s.mu.Unlock()
	programs := "watcher and dispatcher"
	if s.opts.Relays > 0 {
		programs = "watcher, dispatcher and relay agent"
	}
	done("%q (id %d): %s are running", agent.Name, agent.ID, programs)
	return agent, nil
}

func (s *Stack) watcher(name string, agent Agent, kubeconfig string) *service {
	configure := func(map[string]string) configuration {
		cfg := watcher.DefaultConfig()
		cfg.Ops.Listen = anyPort
		cfg.Telemetry = s.telemetry()
		cfg.CredentialsFile = agent.CredentialsFile
		cfg.Kubernetes.Kubeconfig = kubeconfig
		annotations := cfg.Workloads.Annotations
		if cfg.Workloads = s.opts.Workloads; cfg.Workloads.Annotations == nil {
			cfg.Workloads.Annotations = annotations
		}
		s.opts.Configure(name, &cfg)
		return configuration{
			settings: &cfg, common: &cfg.Config, main: func(ctx context.Context) error { return watcher.Main(ctx, cfg) },
		}
	}
	return &service{
		name: name, configure: configure, launch: s.launcher(Watcher),
		newReplica: func(name string) *service { return s.watcher(name, agent, kubeconfig) },
	}
}

func (s *Stack) dispatcher(name string, agent Agent, kubeconfig string) *service {
	configure := func(map[string]string) configuration {
		cfg := dispatcher.DefaultConfig()
		cfg.Ops.Listen = anyPort
		cfg.Telemetry = s.telemetry()
		cfg.CredentialsFile = agent.CredentialsFile
		cfg.Kubeconfig = kubeconfig
		s.opts.Configure(name, &cfg)
		return configuration{
			settings: &cfg, common: &cfg.Config, main: func(ctx context.Context) error { return dispatcher.Main(ctx, cfg) },
		}
	}
	return &service{
		name: name, configure: configure, launch: s.launcher(Dispatcher),
		newReplica: func(name string) *service { return s.dispatcher(name, agent, kubeconfig) },
	}
}

// Agents of the stack.
func (s *Stack) Agents() []Agent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.agents)
}
