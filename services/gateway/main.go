package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	libaccess "lockstep.internal/libs/access"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/persontoken"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/activity"
	"lockstep.internal/services/gateway/address"
	"lockstep.internal/services/gateway/dial"
	"lockstep.internal/services/gateway/nats"
	"lockstep.internal/services/gateway/processes"
	"lockstep.internal/services/gateway/rpc"
	"lockstep.internal/services/gateway/signin"
	"lockstep.internal/services/gateway/sshfront"
	"lockstep.internal/services/gateway/webfront"
)

const serviceName = "gateway"

// gcPercent is high because little memory is in use and much is garbage.
const gcPercent = 400

// Program describes the service for --help.
func Program() config.Program {
	return config.Program{
		Name:  serviceName,
		About: "Lets people enter the workspaces of one cell: by browser, with a terminal, and by SSH.",
	}
}

// Main runs the service until ctx is done.
func Main(ctx context.Context, cfg Config) error {
	service.CollectGarbageAt(gcPercent)
	tel, err := telemetry.Open(ctx, cfg.Telemetry, telemetry.Options{Service: serviceName, Version: service.Version()})
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	defer tel.Close(context.WithoutCancel(ctx)) //nolint:errcheck // only the last spans are lost
	p := &process{cfg: cfg, tel: tel, now: time.Now}
	defer p.close()
	for _, step := range []func(context.Context) error{p.connect, p.openCopies, p.openPeople, p.openFronts} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("gateway: %w", err)
		}
	}
	return service.Run(ctx,
		service.Options{Name: serviceName, Config: cfg.Config, Logger: tel.Logger, Metrics: tel.Metrics}, p.parts()...)
}

// process holds the adapters of the service.
type process struct {
	cfg Config
	tel *telemetry.Telemetry
	now func() time.Time

	conn        *natsconn.Conn
	js          jetstream.JetStream
	directory   *directory.Directory
	table       *access.Table
	keys        *access.Keys
	workspaces  *nats.Workspaces
	revocations *nats.Revocations
	cleanup     *nats.Cleanup
	activity    *activity.Table
	state       *rpc.State
	people      *people
	signIn      *signin.SignIn
	dialer      dial.Dialer
	web         *webfront.Front
	ssh         *sshfront.Server
	publisher   nats.ActivityPublisher
	programs    *processes.Watch
	clients     []*http.Client
}

func (p *process) close() {
	if p.web != nil {
		p.web.Close()
	}
	for _, c := range p.clients {
		c.CloseIdleConnections()
	}
}

func (p *process) cell() topology.Cell { return topology.Cell(p.cfg.Cell.Name) }

func (p *process) connect(ctx context.Context) error {
	cfg := p.cfg.NATS
	cfg.Name, cfg.InboxPrefix = serviceName, natsauth.InboxPrefix(natsauth.PrincipalGateway)
	var err error
	if p.conn, err = natsconn.Connect(ctx, cfg, p.tel.Logger); err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	if err := p.tel.Metrics.Register(p.conn.Collector()); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	if p.js, err = p.conn.JetStream(); err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	return nil
}

func (p *process) openCopies(context.Context) error {
	var err error
	p.directory, err = directory.New(directory.Config{JetStream: p.js, Cell: p.cell(), Logger: p.tel.Logger})
	if err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	p.table, p.keys, p.activity = access.New(), access.NewKeys(), activity.New(p.now)
	p.cleanup = nats.NewCleanup(nats.HostKeys{JetStream: p.js}, p.tel.Logger)
	p.workspaces = nats.New(nats.Config{
		JetStream: p.js, Cell: p.cell(), Table: p.table, Keys: p.keys, People: p.directory, Deleted: p.cleanup.Add,
		Logger: p.tel.Logger,
	})
	p.revocations = nats.NewRevocations(p.js, p.cell(), p.now, p.tel.Logger)
	return nil
}

func (p *process) openPeople(context.Context) error {
	key, err := personKey(p.cfg.SignIn.PersonKeyFile)
	if err != nil {
		return fmt.Errorf("sign_in.person_key_file: %w", err)
	}
	signer, err := persontoken.NewSigner(key, p.cell())
	if err != nil {
		return err
	}
	toState, err := p.client(p.cfg.State.CAFile)
	if err != nil {
		return fmt.Errorf("state.ca_file: %w", err)
	}
	p.state = rpc.NewState(toState, p.cfg.State.URL, serviceName, signer, p.now)
	verifier, err := libaccess.NewVerifier(libaccess.Config{
		Directory: p.directory, Cell: p.cell(), Audience: serviceName,
	})
	if err != nil {
		return fmt.Errorf("access tokens: %w", err)
	}
	p.people = &people{directory: p.directory, keys: p.keys, verifier: verifier, state: p.state, now: p.now}
	return nil
}

func (p *process) client(caFile string) (*http.Client, error) {
	c, err := client(caFile)
	if err == nil {
		p.clients = append(p.clients, c)
	}
	return c, err
}

// workspaces is what the fronts know of workspaces.
type workspaces struct {
	*access.Table
	dial.Dialer
	*rpc.State
}

func (p *process) openFronts(context.Context) error {
	zone, err := address.ParseZone(p.cfg.Zone)
	if err != nil {
		return fmt.Errorf("zone: %w", err)
	}
	signer, err := p.cfg.Workspaces.authority()
	if err != nil {
		return fmt.Errorf("workspaces.authority_key_file: %w", err)
	}
	serverKeys, err := hostKeys(p.cfg.SSH.HostKeyFile)
	if err != nil {
		return fmt.Errorf("ssh.host_key_file: %w", err)
	}
	network, err := p.cfg.network()
	if err != nil {
		return err
	}
	p.dialer = dial.Dialer{Options: dial.Options{
		Table: p.table, Authority: signer, HostKeys: nats.HostKeys{JetStream: p.js}, Network: network, Now: p.now,
	}}
	if err := p.openPrograms(); err != nil {
		return err
	}
	reached := workspaces{p.table, p.dialer, p.state}
	if err := p.openSignIn(zone, serverKeys); err != nil {
		return err
	}
	proxies, err := networks(p.cfg.Web.TrustedProxies)
	if err != nil {
		return fmt.Errorf("web.trusted_proxies: %w", err)
	}
	p.web = webfront.New(webfront.Options{
		Zone: zone, SignIn: p.signIn, Workspaces: reached, TrustedProxies: proxies, Activity: p.activity,
		Logger: p.tel.Logger,
	})
	p.ssh = sshfront.New(sshfront.Options{
		HostKeys: serverKeys, People: p.people, Workspaces: reached, Activity: p.activity, Logger: p.tel.Logger,
		Limits: p.cfg.SSH.limits(),
	})
	if err := p.tel.Metrics.Register(p.ssh); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}

// openPrograms opens what finds out whether programs in workspaces work.
func (p *process) openPrograms() error {
	p.publisher = nats.ActivityPublisher{
		JetStream: p.js, Cell: p.cell(), Table: p.activity, Logger: p.tel.Logger,
	}
	p.programs = processes.New(processes.Options{
		Interval: p.cfg.Workspaces.ProcessInterval, Table: p.table, Agents: p.dialer, Publisher: p.publisher,
		Rounds: nats.Rounds{Codes: nats.Codes{JetStream: p.js}, Name: "processes"}, Now: p.now, Logger: p.tel.Logger,
	})
	if err := p.tel.Metrics.Register(p.programs); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}

func (p *process) openSignIn(zone address.Zone, serverKeys []ssh.Signer) error {
	keys, err := p.cfg.SignIn.keys()
	if err != nil {
		return fmt.Errorf("sign_in.keys_file: %w", err)
	}
	provider, err := p.cfg.SignIn.provider()
	if err != nil {
		return err
	}
	toProvider, err := p.client(p.cfg.SignIn.CAFile)
	if err != nil {
		return fmt.Errorf("sign_in.ca_file: %w", err)
	}
	p.signIn = signin.New(signin.Config{
		Zone: zone, Provider: provider, Lifetime: p.cfg.SignIn.Lifetime, TokenLifetime: p.cfg.SignIn.TokenLifetime,
		WellKnown: p.wellKnown(zone, serverKeys),
	}, signin.Dependencies{
		Keys: keys, Users: p.people, Revocations: p.revocations, Codes: nats.Codes{JetStream: p.js}, Tokens: p.people,
		HostKeys: nats.HostKeys{JetStream: p.js}, Workspaces: p.table, Client: toProvider, Logger: p.tel.Logger, Now: p.now,
	})
	return nil
}

// wellKnown is what programs of people need to know.
func (p *process) wellKnown(zone address.Zone, serverKeys []ssh.Signer) signin.WellKnown {
	reached := p.cfg.SSH.Address
	if reached == "" {
		host, _, _ := strings.Cut(string(zone), ":")
		_, port, err := net.SplitHostPort(p.cfg.SSH.Listen)
		if err != nil {
			port = "22"
		}
		reached = net.JoinHostPort(host, port)
	}
	known := signin.WellKnown{Zone: string(zone), SSH: signin.SSH{Address: reached}}
	for _, key := range serverKeys {
		known.SSH.KnownHosts = append(known.SSH.KnownHosts,
			knownhosts.Line([]string{knownhosts.Normalize(reached)}, key.PublicKey()))
	}
	return known
}
