package stack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/services/admission"
	"lockstep.internal/services/router"
	"lockstep.internal/services/runners"
)

// startCI starts the services for CI jobs.
func (s *Stack) startCI(ctx context.Context) error {
	if s.opts.Runners {
		done := s.progress.step(Runners)
		seed, _, err := InitRunners(filepath.Join(s.dir, "keys", Runners))
		if err != nil {
			return err
		}
		if err := os.MkdirAll(s.artifactsDir(), 0o700); err != nil {
			return fmt.Errorf("create the folder of artifacts: %w", err)
		}
		if err := s.run(ctx, s.runners(Runners, s.opts.RunnersListen, seed)); err != nil {
			return err
		}
		done("API on %s", s.RunnersURL())
	}
	if s.opts.Admission {
		done := s.progress.step(Admission)
		seed, _, err := InitAdmission(filepath.Join(s.dir, "keys", Admission))
		if err != nil {
			return err
		}
		if err := s.run(ctx, s.admission(Admission, s.opts.AdmissionListen, seed)); err != nil {
			return err
		}
		done("API on %s", s.AdmissionURL())
	}
	if s.opts.Router {
		done := s.progress.step(Router)
		if err := s.run(ctx, s.router(Router, s.opts.RouterListen)); err != nil {
			return err
		}
		done("for GitLab runners on %s", s.RouterURL())
	}
	return nil
}

func (s *Stack) artifactsDir() string { return filepath.Join(s.dir, "artifacts") }

// RunnersURL is where the runners service listens; empty without it.
func (s *Stack) RunnersURL() string { return s.RunnersURLOf(Runners) }

// RunnersURLOf is where a replica of the runners service listens; empty if there is no such replica.
func (s *Stack) RunnersURLOf(name string) string { return s.listenURL("http://", name, ListenerAPI) }

// AdmissionURL is where the admission service listens; empty without it.
func (s *Stack) AdmissionURL() string { return s.listenURL("http://", Admission, ListenerAPI) }

// RouterURL is where the router listens; empty without one.
func (s *Stack) RouterURL() string { return s.RouterURLOf(Router) }

// RouterURLOf is where a replica of the router listens; empty if there is no such replica.
func (s *Stack) RouterURLOf(name string) string { return s.listenURL("http://", name, ListenerAPI) }

func (s *Stack) runners(name, listen, seed string) *service {
	configure := func(addresses map[string]string) configuration {
		cfg := runners.DefaultConfig()
		cfg.Ops.Listen, cfg.API.Listen = anyPort, addresses[ListenerAPI]
		cfg.Telemetry = s.telemetry()
		cfg.Cell.Name, cfg.Cell.Number = string(s.opts.Cell), s.opts.CellNumber
		cfg.Cell.URL = "http://" + addresses[ListenerAPI]
		cfg.Database.URLFile = config.SecretFile(s.databaseURLFile(Runners))
		cfg.NATS.URL = config.URL(s.natsURL())
		cfg.NATS.NKeySeedFile = config.SecretFile(natsauth.SeedFile(s.natsDir(), natsauth.PrincipalRunners))
		if s.opts.MapNATS != "" {
			cfg.Map.URL, cfg.Map.NKeySeedFile = config.URL(s.opts.MapNATS), config.SecretFile(s.opts.MapSeedFile)
		}
		cfg.State.URL = s.apiURL
		cfg.Signing.KeyFile = config.SecretFile(seed)
		cfg.Artifacts.Store.Disk.Folder = s.artifactsDir()
		cfg.Admission.Enabled = s.opts.Admission
		s.opts.Configure(name, &cfg)
		return configuration{
			settings: &cfg, common: &cfg.Config, main: func(ctx context.Context) error { return runners.Main(ctx, cfg) },
		}
	}
	return &service{
		name: name, configure: configure, launch: s.launcher(Runners),
		listen:     map[string]string{ListenerAPI: listen},
		newReplica: func(name string) *service { return s.runners(name, anyPort, seed) },
	}
}

func (s *Stack) admission(name, listen, seed string) *service {
	configure := func(addresses map[string]string) configuration {
		cfg := admission.DefaultConfig()
		cfg.Ops.Listen, cfg.API.Listen = anyPort, addresses[ListenerAPI]
		cfg.Telemetry = s.telemetry()
		cfg.Cell.Name, cfg.Cell.PublicURL = string(s.opts.Cell), "http://"+addresses[ListenerAPI]
		cfg.Database.URLFile = config.SecretFile(s.databaseURLFile(Admission))
		cfg.NATS.URL = config.URL(s.natsURL())
		cfg.NATS.NKeySeedFile = config.SecretFile(natsauth.SeedFile(s.natsDir(), natsauth.PrincipalAdmission))
		cfg.Secrets.KeyFile = config.SecretFile(seed)
		// Controllers of a stack run on the same machine.
		cfg.Controllers.AllowPrivate = true
		s.opts.Configure(name, &cfg)
		return configuration{
			settings: &cfg, common: &cfg.Config, main: func(ctx context.Context) error { return admission.Main(ctx, cfg) },
		}
	}
	return &service{
		name: name, configure: configure, launch: s.launcher(Admission),
		listen:     map[string]string{ListenerAPI: listen},
		newReplica: func(name string) *service { return s.admission(name, anyPort, seed) },
	}
}

func (s *Stack) router(name, listen string) *service {
	configure := func(addresses map[string]string) configuration {
		cfg := router.DefaultConfig()
		cfg.Ops.Listen, cfg.API.Listen = anyPort, addresses[ListenerAPI]
		cfg.Telemetry = s.telemetry()
		cfg.Cell.Name = string(s.opts.Cell)
		cfg.NATS.URL = config.URL(s.natsURL())
		cfg.NATS.NKeySeedFile = config.SecretFile(natsauth.SeedFile(s.natsDir(), natsauth.PrincipalRouter))
		s.opts.Configure(name, &cfg)
		return configuration{
			settings: &cfg, common: &cfg.Config, main: func(ctx context.Context) error { return router.Main(ctx, cfg) },
		}
	}
	return &service{
		name: name, configure: configure, launch: s.launcher(Router),
		listen:     map[string]string{ListenerAPI: listen},
		newReplica: func(name string) *service { return s.router(name, anyPort) },
	}
}
