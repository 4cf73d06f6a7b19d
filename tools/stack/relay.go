package stack

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/kubename"
	"lockstep.internal/libs/natsauth"
	libservice "lockstep.internal/libs/service"
	"lockstep.internal/services/relay"
	"lockstep.internal/services/relay/agent"
)

// Names of the relay's listeners.
const (
	ListenerAgents   = "agents"
	ListenerExternal = "external"
	ListenerInternal = "internal"
)

// RelayAgentOf is the name of an agent's relay agent.
func RelayAgentOf(agent string) string { return RelayAgent + "-" + agent }

// RelayOf is the name of the nth relay, from 1 on.
func RelayOf(n int) string { return replicaName(Relay, n) }

// RelayCAFile holds the authority of the relays' certificate.
func (s *Stack) RelayCAFile() string { return s.relayKeys.CertFile }

// RelayURL is where the first relay listens for callers; empty without relays.
func (s *Stack) RelayURL() string { return s.RelayURLOf(Relay) }

// RelayURLOf is where a relay listens for callers; empty if there is no such relay.
func (s *Stack) RelayURLOf(name string) string {
	return s.listenURL("https://", name, ListenerExternal)
}

// RelayAgentsURLOf is where a relay listens for agents; empty if there is no such relay.
func (s *Stack) RelayAgentsURLOf(name string) string {
	return s.listenURL("wss://", name, ListenerAgents)
}

func (s *Stack) listenURL(scheme, name, listener string) string {
	address := s.Address(name, listener)
	if address == "" {
		return ""
	}
	return scheme + address
}

func (s *Stack) startRelays(ctx context.Context) error {
	if s.opts.Relays == 0 {
		return nil
	}
	done := s.progress.step(Relay)
	if err := s.run(ctx, s.relay(Relay, s.opts.RelayListen)); err != nil {
		return err
	}
	for range s.opts.Relays - 1 {
		if _, err := s.AddReplica(ctx, Relay); err != nil {
			return err
		}
	}
	if s.lab != nil { // do not change a cluster that was given
		if err := bindRoles(ctx, s.kubeconfig); err != nil {
			return fmt.Errorf("create role bindings for relay users: %w", err)
		}
	}
	done("for callers on %s", s.RelayURL())
	return nil
}

func (s *Stack) relay(name, listen string) *service {
	configure := func(addresses map[string]string) configuration {
		cfg := relay.DefaultConfig()
		cfg.Ops.Listen = anyPort
		for _, l := range []struct {
			name string
			to   *libservice.Listener
		}{
			{ListenerExternal, &cfg.External.Listener},
			{ListenerAgents, &cfg.Agents.Listener},
			{ListenerInternal, &cfg.Internal.Listener},
		} {
			l.to.TLS.CertFile, l.to.TLS.KeyFile = s.relayKeys.CertFile, s.relayKeys.KeyFile
			l.to.Listen = addresses[l.name]
		}
		cfg.Telemetry = s.telemetry()
		cfg.Cell.Name = string(s.opts.Cell)
		cfg.NATS.URL = config.URL(s.natsURL())
		cfg.NATS.NKeySeedFile = config.SecretFile(natsauth.SeedFile(s.natsDir(), natsauth.PrincipalRelay))
		cfg.Internal.SecretFile = config.SecretFile(s.relayKeys.SecretFile)
		cfg.Internal.CAFile = s.relayKeys.CertFile
		s.opts.Configure(name, &cfg)
		return configuration{
			settings: &cfg, common: &cfg.Config, main: func(ctx context.Context) error { return relay.Main(ctx, cfg) },
		}
	}
	return &service{
		name: name, configure: configure, launch: s.launcher(Relay),
		listen:     map[string]string{ListenerExternal: listen, ListenerAgents: anyPort, ListenerInternal: anyPort},
		newReplica: func(name string) *service { return s.relay(name, anyPort) },
	}
}

// startRelayAgents of an agent: each replica connects to all relays that exist when it starts.
func (s *Stack) startRelayAgents(ctx context.Context, agent Agent, kubeconfig string) error {
	if s.opts.Relays == 0 {
		return nil
	}
	if err := s.run(ctx, s.relayAgent(RelayAgentOf(agent.Name), agent, kubeconfig)); err != nil {
		return err
	}
	for range s.opts.RelayAgents - 1 {
		if _, err := s.AddReplica(ctx, RelayAgentOf(agent.Name)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Stack) relayAgent(name string, of Agent, kubeconfig string) *service {
	configure := func(map[string]string) configuration {
		cfg := agent.DefaultConfig()
		cfg.Ops.Listen = anyPort
		cfg.Telemetry = s.telemetry()
		cfg.CredentialsFile = of.CredentialsFile
		cfg.Kubernetes.Kubeconfig = kubeconfig
		cfg.Relay.URLs = s.relayAgentsURLs()
		cfg.Relay.TLS.CAFile = s.relayKeys.CertFile
		s.opts.Configure(name, &cfg)
		return configuration{
			settings: &cfg, common: &cfg.Config, main: func(ctx context.Context) error { return agent.Main(ctx, cfg) },
		}
	}
	return &service{
		name: name, configure: configure, launch: s.launcher(RelayAgent),
		newReplica: func(name string) *service { return s.relayAgent(name, of, kubeconfig) },
	}
}

// relayAgentsURLs are where relays listen for agents.
func (s *Stack) relayAgentsURLs() []string {
	var urls []string
	for n := 1; ; n++ {
		url := s.RelayAgentsURLOf(RelayOf(n))
		if url == "" {
			return urls
		}
		urls = append(urls, url)
	}
}

// bindRoles binds the groups of relay users to ClusterRoles: reader to view, administrator to cluster-admin, and
// developer to edit in the namespace default. The namespaces of workspaces are their owners'.
func bindRoles(ctx context.Context, kubeconfig string) error {
	described, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	transport, err := rest.HTTPClientFor(described)
	if err != nil {
		return fmt.Errorf("call the API server: %w", err)
	}
	defer transport.CloseIdleConnections()
	client, err := kubernetes.NewForConfigAndClient(described, transport)
	if err != nil {
		return fmt.Errorf("call the API server: %w", err)
	}
	for _, b := range []struct{ role, clusterRole, namespace string }{
		{"reader", "view", ""}, {"developer", "edit", metav1.NamespaceDefault}, {"administrator", "cluster-admin", ""},
	} {
		meta := metav1.ObjectMeta{Name: "lockstep-role-" + b.role}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: b.clusterRole}
		group := []rbacv1.Subject{
			{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: kubename.Prefix + "role:" + b.role},
		}
		if b.namespace == "" {
			_, err = client.RbacV1().ClusterRoleBindings().Create(ctx,
				&rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: group}, metav1.CreateOptions{})
		} else {
			_, err = client.RbacV1().RoleBindings(b.namespace).Create(ctx,
				&rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: group}, metav1.CreateOptions{})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("bind the group of role %s: %w", b.role, err)
		}
	}
	return nil
}
