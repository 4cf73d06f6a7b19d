package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"connectrpc.com/connect"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsauth"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/deploys"
	"lockstep.internal/services/dispatcher"
	"lockstep.internal/services/relay"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/services/state"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
)

const (
	firstAgent, secondAgent = "local", "second"
	watcherLease            = stack.Watcher
	nodes                   = 3
	relays                  = 2

	nats, postgres = "nats", "postgres"
)

// system is a running Lockstep in separate processes, with two replicas of each service, and links between them. Two
// agents share its cluster: the first has the load, the second only answers relayed requests.
type system struct {
	*stack.Stack

	dir  string
	nats *natsProcess
	log  *os.File

	mu      sync.Mutex
	links   map[string]*link
	targets []net.Listener // of relayed requests
}

// startSystem starts everything in a folder. Programs is the folder of the services' programs.
func startSystem(ctx context.Context, dir, programs string, progress io.Writer) (_ *system, err error) {
	s := &system{dir: dir, links: map[string]*link{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if s.log, err = os.OpenFile(filepath.Join(dir, "nats.log"), os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		return nil, fmt.Errorf("open the log of NATS: %w", err)
	}
	natsDir := filepath.Join(dir, "nats")
	report, err := natsauth.Init(natsDir, natsauth.Options{Cell: stack.Cell})
	if err != nil {
		return nil, fmt.Errorf("configure NATS: %w", err)
	}
	if s.nats, err = newNATSProcess(ctx, report.ConfigFile, filepath.Join(dir, "jetstream"), s.log); err != nil {
		return nil, err
	}
	s.Stack, err = stack.Start(ctx, stack.Options{
		Dir: filepath.Join(dir, "stack"), Nodes: nodes, Workloads: watcher.Workloads{Enabled: true},
		NATSURL: "nats://" + s.nats.address(), NATSDir: natsDir,
		Relays: relays, RelayAgents: 2, Programs: programs, Configure: s.configure, Progress: progress,
	})
	if err != nil {
		return nil, err
	}
	for _, of := range []string{
		stack.State, stack.Deploys, stack.WatcherOf(firstAgent), stack.DispatcherOf(firstAgent),
	} {
		if _, err := s.AddReplica(ctx, of); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// stop stops everything and keeps the files.
func (s *system) stop() error {
	var errs []error
	s.mu.Lock()
	links := s.links
	s.mu.Unlock()
	if s.Stack != nil {
		errs = append(errs, s.Stop())
	}
	for _, target := range s.targets {
		errs = append(errs, target.Close())
	}
	if s.nats != nil {
		errs = append(errs, s.nats.stop())
	}
	for _, l := range links {
		errs = append(errs, l.close())
	}
	if s.log != nil {
		errs = append(errs, s.log.Close())
	}
	return errors.Join(errs...)
}

// through returns the address of the link of a service to a peer. The link starts with its first use.
func (s *system) through(service, peer, to string) string {
	name := linkName(service, peer)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.links[name] == nil {
		made, err := newLink(context.Background(), to)
		if err != nil {
			panic(err) // a free port of the loopback interface
		}
		s.links[name] = made
	}
	return s.links[name].address()
}

// replicaNumber is the part of a link's name that differs between the replicas of a service.
var replicaNumber = regexp.MustCompile(`#\d+`)

// linkName returns the name of a link. Without the number of the replica, it is the name of the links of all replicas.
func linkName(service, peer string) string {
	if !strings.Contains(service, "#") {
		service += "#1"
	}
	return service + "-" + peer
}

// linksOf returns the link with a name, or the links of all replicas with it.
func (s *system) linksOf(name string) []*link {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*link
	for each, l := range s.links {
		if each == name || replicaNumber.ReplaceAllString(each, "") == name {
			found = append(found, l)
		}
	}
	return found
}

// configure puts links between a service and what it connects to.
func (s *system) configure(service string, settings any) {
	natsLink := func() config.URL { return config.URL("nats://" + s.through(service, nats, s.nats.address())) }
	switch cfg := settings.(type) {
	case *state.Config:
		cfg.NATS.URL = natsLink()
		cfg.Database.URLFile = s.databaseLink(service, cfg.Database.URLFile)
	case *deploys.Config:
		cfg.NATS.URL = natsLink()
		cfg.Database.URLFile = s.databaseLink(service, cfg.Database.URLFile)
	case *relay.Config:
		cfg.NATS.URL = natsLink()
	case *watcher.Config:
		if isFirst(cfg.CredentialsFile) {
			cfg.CredentialsFile = s.credentialsLink(service, cfg.CredentialsFile)
			cfg.Kubernetes.Kubeconfig = s.kubernetesLink(service, cfg.Kubernetes.Kubeconfig)
		} else {
			cfg.Workloads.Enabled = false
		}
		cfg.Lease.Duration, cfg.Lease.RenewDeadline, cfg.Lease.RetryPeriod = leaseDeadline+leaseDeadline/3, leaseDeadline,
			leaseDeadline/6
	case *dispatcher.Config:
		if isFirst(cfg.CredentialsFile) {
			cfg.CredentialsFile = s.credentialsLink(service, cfg.CredentialsFile)
			cfg.Kubeconfig = s.kubernetesLink(service, cfg.Kubeconfig)
		}
		cfg.Lease.Duration, cfg.Lease.RenewDeadline, cfg.Lease.RetryPeriod = leaseDeadline+leaseDeadline/3, leaseDeadline,
			leaseDeadline/6
	case *agent.Config:
		cfg.Targets.AllowedAddresses = append(cfg.Targets.AllowedAddresses, "127.0.0.1:*")
		if isFirst(cfg.CredentialsFile) {
			for i, address := range cfg.Relay.URLs {
				to := strings.TrimPrefix(address, "wss://")
				cfg.Relay.URLs[i] = "wss://" + s.through(service, fmt.Sprintf("relay-%d", i+1), to)
			}
		}
	}
}

func isFirst(credentialsFile string) bool {
	return filepath.Base(credentialsFile) == firstAgent+".json"
}

// databaseLink writes the URL of a service's database through a link, and returns the file.
func (s *system) databaseLink(service string, direct config.Secret) config.Secret {
	raw, err := direct.Read()
	must(err)
	address, err := url.Parse(raw)
	must(err)
	address.Host = s.through(service, postgres, address.Host)
	file := filepath.Join(s.dir, service+".database.url")
	must(os.WriteFile(file, []byte(address.String()+"\n"), 0o600))
	return config.SecretFile(file)
}

// credentialsLink writes an agent's credentials with a link to NATS, and returns the file.
func (s *system) credentialsLink(service, file string) string {
	credentials, err := natsauth.ReadAgentCredentials(file)
	must(err)
	credentials.ServerURLs = []string{"nats://" + s.through(service, nats, s.nats.address())}
	through := filepath.Join(s.dir, service+"."+filepath.Base(file))
	must(natsauth.WriteAgentCredentials(through, credentials))
	return through
}

// kubernetesLink writes a kubeconfig with a link to the API server, and returns the file.
func (s *system) kubernetesLink(service, file string) string {
	loaded, err := clientcmd.LoadFromFile(file)
	must(err)
	for _, cluster := range loaded.Clusters {
		address, err := url.Parse(cluster.Server)
		must(err)
		address.Host = s.through(service, "kubernetes", address.Host)
		cluster.Server = address.String()
	}
	through := filepath.Join(s.dir, service+".kubeconfig")
	must(clientcmd.WriteToFile(*loaded, through))
	return through
}

// must panics on failures of files that this program has just written.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// addAgents adds the second agent, gives each a target and the first a quota for each user. It returns their ids.
func (s *system) addAgents(ctx context.Context, api *client.API, project int64) (map[string]int64, error) {
	second, err := s.AddAgent(ctx, project, secondAgent, s.Kubeconfig())
	if err != nil {
		return nil, err
	}
	ids := map[string]int64{firstAgent: s.Agents()[0].ID, secondAgent: second.ID}
	for name, id := range ids {
		target, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("target of agent %s: %w", name, err)
		}
		s.targets = append(s.targets, target)
		go serveTarget(target, name)
		_, err = api.Agents.ConfigureAgent(ctx, connect.NewRequest(&statev1.ConfigureAgentRequest{
			Id: id, Configuration: &statev1.AgentConfiguration{
				MaxWorkspacesPerUser: new(int32(workspacesPerUser)),
				RelayTargets: &statev1.RelayTargets{Targets: []*statev1.RelayTarget{
					{Name: relayTarget, Address: target.Addr().String()},
				}},
			},
		}))
		if err != nil {
			return nil, fmt.Errorf("configure agent %s: %w", name, err)
		}
	}
	return ids, nil
}

// apiOf returns a client of each replica of state for the owner of a token.
func (s *system) apiOf(token string) []*client.API {
	var all []*client.API
	for _, name := range []string{stack.State, stack.State + "#2"} {
		all = append(all, client.New(http.DefaultClient, "http://"+s.Address(name, stack.ListenerAPI), token))
	}
	return all
}

// kube returns a client of the API server that uses no link.
func (s *system) kube() (kubernetes.Interface, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	cfg.QPS = -1
	transport, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("call the API server: %w", err)
	}
	return kubernetes.NewForConfigAndClient(cfg, transport) //nolint:wrapcheck // it names the setting
}
