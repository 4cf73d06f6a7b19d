package stack

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/services/dispatcher"
	"lockstep.internal/services/state"
	"lockstep.internal/services/watcher"
)

func (s *Stack) telemetry() telemetry.Config {
	cfg := telemetry.DefaultConfig()
	cfg.LogFormat, cfg.Out = "text", s.log
	return cfg
}

// run starts a service and remembers it.
func (s *Stack) run(ctx context.Context, p *process) (map[string]string, error) {
	s.mu.Lock()
	s.processes = append(s.processes, p)
	s.mu.Unlock()
	return p.start(ctx)
}

func (s *Stack) startState(ctx context.Context) error {
	done := s.progress.step(State)
	listen := s.opts.APIListen
	addrs, err := s.run(ctx, &process{name: State, main: func(ctx context.Context, ready func(map[string]string)) error {
		cfg := state.DefaultConfig()
		cfg.Ops.Listen, cfg.OnReady = "127.0.0.1:0", ready
		cfg.API.Listen = listen
		cfg.Telemetry = s.telemetry()
		cfg.Cell.Name = string(Cell)
		cfg.Database.URL = config.URL(s.databaseURL)
		cfg.NATS.URL = config.URL(s.nats.ClientURL())
		cfg.Agents.KeysDir = s.natsDir()
		cfg.Secrets.SealSeedFile = config.SecretFile(s.keys.SealSeedFile)
		cfg.Secrets.DigestKeyFile = config.SecretFile(s.keys.DigestKeyFile)
		cfg.Bootstrap.AdminTokenFile = config.SecretFile(s.keys.AdminTokenFile)
		if s.opts.Image != "" {
			cfg.Workspace.Image = s.opts.Image
		}
		s.opts.Configure(State, &cfg)
		return state.Main(ctx, cfg)
	}})
	if err != nil {
		return err
	}
	// A restarted service is found where it was.
	listen = addrs["api"]
	s.apiURL = "http://" + listen
	done("API on %s", s.apiURL)
	return nil
}

// Agent of a stack.
type Agent struct {
	ID              int64
	Name            string
	CredentialsFile string
}

// WatcherOf and DispatcherOf are the names of an agent's services, for Restart.
func WatcherOf(agent string) string { return Watcher + "-" + agent }

// DispatcherOf is the name of an agent's dispatcher.
func DispatcherOf(agent string) string { return Dispatcher + "-" + agent }

// AddAgent registers an agent in a project, or takes the one that is there, and starts its watcher and dispatcher.
func (s *Stack) AddAgent(ctx context.Context, project int64, name, kubeconfig string) (Agent, error) {
	done := s.progress.step("agent")
	agent := Agent{Name: name, CredentialsFile: filepath.Join(s.dir, "agents", name+".json")}
	credentials, err := natsauth.ReadAgentCredentials(agent.CredentialsFile)
	if err == nil {
		// NATS has another port after a restart.
		credentials.ServerURLs = []string{s.nats.ClientURL()}
		err = natsauth.WriteAgentCredentials(agent.CredentialsFile, credentials)
	} else {
		credentials, err = s.register(ctx, project, agent)
	}
	if err != nil {
		return Agent{}, err
	}
	agent.ID = credentials.AgentID
	_, watcherErr := s.run(ctx, s.watcher(agent, kubeconfig))
	_, dispatcherErr := s.run(ctx, s.dispatcher(agent, kubeconfig))
	if err := errors.Join(watcherErr, dispatcherErr); err != nil {
		return Agent{}, fmt.Errorf("agent %s: %w", name, err)
	}
	s.mu.Lock()
	s.agents = append(s.agents, agent)
	s.mu.Unlock()
	done("%q is %d, its watcher and dispatcher run", name, agent.ID)
	return agent, nil
}

func (s *Stack) watcher(agent Agent, kubeconfig string) *process {
	return &process{name: WatcherOf(agent.Name), main: func(ctx context.Context, ready func(map[string]string)) error {
		cfg := watcher.DefaultConfig()
		cfg.Ops.Listen, cfg.OnReady = "127.0.0.1:0", ready
		cfg.Telemetry = s.telemetry()
		cfg.CredentialsFile = agent.CredentialsFile
		cfg.Kubernetes.Kubeconfig = kubeconfig
		s.opts.Configure(Watcher, &cfg)
		return watcher.Main(ctx, cfg)
	}}
}

func (s *Stack) dispatcher(agent Agent, kubeconfig string) *process {
	return &process{name: DispatcherOf(agent.Name), main: func(ctx context.Context, ready func(map[string]string)) error {
		cfg := dispatcher.DefaultConfig()
		cfg.Ops.Listen, cfg.OnReady = "127.0.0.1:0", ready
		cfg.Telemetry = s.telemetry()
		cfg.CredentialsFile = agent.CredentialsFile
		cfg.Kubeconfig = kubeconfig
		s.opts.Configure(Dispatcher, &cfg)
		return dispatcher.Main(ctx, cfg)
	}}
}

// Agents of the stack.
func (s *Stack) Agents() []Agent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Agent(nil), s.agents...)
}
