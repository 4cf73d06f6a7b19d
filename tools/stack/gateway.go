package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/gateway"
	"lockstep.internal/services/gateway/address"
	"lockstep.internal/services/state"
)

// Names of the gateway's listeners.
const (
	ListenerWeb = "web"
	ListenerSSH = "ssh"
)

const (
	// zoneHost has the names of workspaces. Browsers know that names below localhost are this machine.
	zoneHost = "ws.localhost"
	// agentImage is never pulled: kubelab runs Options.WorkspaceAgent in its place.
	agentImage = "lockstep/workspace-agent:latest"
)

// gatewayFiles are what a gateway needs. They are empty without one.
type gatewayFiles struct {
	keys              GatewayKeys
	certFile, keyFile string
	// authority and person are the public keys that the state service needs.
	authority, person string
}

var errGatewayNeedsKubelab = fault.New(errcode.InvalidArgument,
	"a gateway of a stack needs kubelab, and the program workspace-agent: leave the gateway out")

// initGateway makes the missing keys and the certificate of the gateway.
func (s *Stack) initGateway() error {
	if !s.opts.Gateway {
		return nil
	}
	if s.opts.WithoutCluster || s.opts.Kubeconfig != "" || s.opts.WorkspaceAgent == "" {
		return errGatewayNeedsKubelab
	}
	dir := filepath.Join(s.dir, "keys", Gateway)
	files := gatewayFiles{certFile: filepath.Join(dir, "gateway.crt"), keyFile: filepath.Join(dir, "gateway.tls.key")}
	var err error
	if files.keys, _, err = InitGateway(dir); err != nil {
		return err
	}
	_, keyErr := writeOnce(files.keyFile, privateKey)
	_, certErr := writeOnce(files.certFile, func() (string, error) {
		return certificate("lockstep gateway", files.keyFile, []string{zoneHost, "*." + zoneHost})
	})
	if err := errors.Join(keyErr, certErr); err != nil {
		return fmt.Errorf("create the certificate of the gateway: %w", err)
	}
	if files.authority, err = PublicKey(files.keys.AuthorityFile); err != nil {
		return err
	}
	if files.person, err = PublicKey(files.keys.PersonFile); err != nil {
		return err
	}
	s.gateway = files
	return nil
}

// zone has the names of the ports of workspaces, with the port of the first gateway.
func (s *Stack) zone() address.Zone { return address.Zone(onPortOf(zoneHost, s.opts.GatewayListen)) }

// onPortOf returns the host with the port of another address.
func onPortOf(host, address string) string {
	_, port, _ := net.SplitHostPort(address) // reservePorts has parsed it
	return net.JoinHostPort(host, port)
}

// configureEntering gives workspaces an agent, and tells the state service about the gateway.
func (s *Stack) configureEntering(cfg *state.Config) {
	if !s.opts.Gateway {
		return
	}
	cfg.Workspace.AgentImage, cfg.Workspace.SSHAuthorities = agentImage, []string{s.gateway.authority}
	cfg.Gateway.URL, cfg.Gateway.PublicKeys = s.GatewayURL(), []string{s.gateway.person}
}

func (s *Stack) startGateway(ctx context.Context) error {
	if !s.opts.Gateway {
		return nil
	}
	done := s.progress.step(Gateway)
	if err := s.run(ctx, s.gatewayService(Gateway, s.opts.GatewayListen, s.opts.GatewaySSHListen)); err != nil {
		return err
	}
	done("for browsers on %s, for SSH on %s", s.GatewayURL(), s.Address(Gateway, ListenerSSH))
	return nil
}

// GatewayURL is where people sign in; empty without a gateway.
func (s *Stack) GatewayURL() string {
	if !s.opts.Gateway {
		return ""
	}
	return "https://" + s.zone().SignIn()
}

// GatewayCAFile holds the authority of the gateways' certificate.
func (s *Stack) GatewayCAFile() string { return s.gateway.certFile }

// WorkspaceURL is where browsers reach a port of a workspace; that of address.TerminalPort is the terminal.
func (s *Stack) WorkspaceURL(workspace string, port int) string {
	return "https://" + s.zone().Host(address.Target{Workspace: workspace, Port: port})
}

func (s *Stack) gatewayService(name, web, forSSH string) *service {
	configure := func(addresses map[string]string) configuration {
		cfg := gateway.DefaultConfig()
		cfg.Ops.Listen = anyPort
		cfg.Telemetry = s.telemetry()
		cfg.Cell.Name = string(s.opts.Cell)
		cfg.Zone = string(s.zone())
		cfg.Web.Listen, cfg.SSH.Listen = addresses[ListenerWeb], addresses[ListenerSSH]
		cfg.Web.TLS.CertFile, cfg.Web.TLS.KeyFile = s.gateway.certFile, s.gateway.keyFile
		cfg.SSH.Address = onPortOf(zoneHost, s.opts.GatewaySSHListen)
		cfg.SSH.HostKeyFile = config.SecretFile(s.gateway.keys.HostFile)
		cfg.SignIn.KeysFile = config.SecretFile(s.gateway.keys.CookiesFile)
		cfg.SignIn.PersonKeyFile = config.SecretFile(s.gateway.keys.PersonFile)
		cfg.Workspaces.AuthorityKeyFile = config.SecretFile(s.gateway.keys.AuthorityFile)
		cfg.Workspaces.DNSServer = s.lab.DNS()
		cfg.NATS.URL = config.URL(s.natsURL())
		cfg.NATS.NKeySeedFile = config.SecretFile(natsauth.SeedFile(s.natsDir(), natsauth.PrincipalGateway))
		cfg.State.URL = s.apiURL
		s.opts.Configure(name, &cfg)
		return configuration{
			settings: &cfg, common: &cfg.Config, main: func(ctx context.Context) error { return gateway.Main(ctx, cfg) },
		}
	}
	return &service{
		name: name, configure: configure, launch: s.launcher(Gateway),
		listen:     map[string]string{ListenerWeb: web, ListenerSSH: forSSH},
		newReplica: func(name string) *service { return s.gatewayService(name, anyPort, anyPort) },
	}
}
