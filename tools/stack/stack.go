package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/pgroles"
	"lockstep.internal/tools/testkit/lab"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/pg"
	"lockstep.internal/tools/testkit/port"
)

// Cell is the default name of a stack's cell.
const Cell = topology.Cell("local")

// Names of the services.
const (
	State      = "state"
	Watcher    = "watcher"
	Dispatcher = "dispatcher"
	Deploys    = "deploys"
	Relay      = "relay"
	RelayAgent = "relay-agent"
	Runners    = "runners"
	Admission  = "admission"
	Router     = "router"
	Gateway    = "gateway"
)

const (
	stopTimeout     = 30 * time.Second
	databaseTimeout = 10 * time.Second
)

// Stack is a running system.
type Stack struct {
	opts      Options
	dir       string
	temporary bool
	progress  *progress
	log       *os.File
	keys      Keys
	relayKeys RelayKeys
	gateway   gatewayFiles

	database   *pg.Server
	nats       *natsd.Server
	lab        *lab.Lab
	kubeconfig string
	apiURL     string

	lock         *os.File     // of the data folder
	held         []*port.Held // until the end, so that no other process gets them while a server restarts
	databasePort int          // of the private server; 0 for a free one

	mu       sync.Mutex
	services []*service // in the order of their start
	agents   []Agent
}

// Start starts everything and returns when a first agent, if there is a cluster, is connected and ready. On error it
// stops everything that was started. The error of a service has the end of the log, unless it already says what to do.
func Start(ctx context.Context, opts Options) (*Stack, error) {
	opts = opts.withDefaults()
	s := &Stack{opts: opts, dir: opts.Dir, progress: &progress{out: opts.Progress}}
	err := s.start(ctx)
	if err != nil {
		internal := fault.From(err).Code == errcode.Internal && !errors.Is(err, context.Canceled)
		if log := s.logTail(); log != "" && len(s.services) > 0 && internal {
			err = fmt.Errorf("%w\nthe services' log ends with:\n%s", err, log)
		}
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Stack) start(ctx context.Context) error {
	if err := s.openDir(); err != nil {
		return err
	}
	if s.opts.DatabaseURL != "" {
		if err := checkDatabase(ctx, s.opts.DatabaseURL); err != nil {
			return err
		}
	}
	dependencies, startCtx := errgroup.WithContext(ctx)
	dependencies.Go(func() error { return s.startDatabase(startCtx) })
	dependencies.Go(func() error { return s.startNATS(startCtx) })
	if !s.opts.WithoutCluster {
		dependencies.Go(func() error { return s.startCluster(startCtx) })
	}
	if err := dependencies.Wait(); err != nil {
		return err //nolint:wrapcheck // the error names the dependency
	}
	if err := s.startState(ctx); err != nil {
		return err
	}
	if s.opts.Workloads.Enabled {
		if err := s.startDeploys(ctx); err != nil {
			return err
		}
	}
	if err := s.startRelays(ctx); err != nil {
		return err
	}
	if err := s.startCI(ctx); err != nil {
		return err
	}
	if err := s.startGateway(ctx); err != nil {
		return err
	}
	if err := s.writeClient(); err != nil {
		return err
	}
	project, err := s.ensureProject(ctx)
	if err != nil {
		return err
	}
	if s.opts.WithoutCluster {
		return nil
	}
	_, err = s.AddAgent(ctx, project, "local", s.kubeconfig)
	return err
}

func (s *Stack) openDir() error {
	if s.dir == "" {
		dir, err := os.MkdirTemp("", "lockstep-")
		if err != nil {
			return fmt.Errorf("create a folder: %w", err)
		}
		// If this process is root, PostgreSQL runs as another user, who must be able to enter its folder in this one.
		if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // it lists nothing to others
			return fmt.Errorf("create a folder: %w", err)
		}
		s.dir, s.temporary = dir, true
	}
	for _, folder := range []string{s.dir, filepath.Join(s.dir, "agents"), s.servicesDir()} {
		if err := os.MkdirAll(folder, 0o711); err != nil { //nolint:gosec // it lists nothing to others
			return fmt.Errorf("create a folder: %w", err)
		}
	}
	var err error
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	if s.lock, err = lockFolder(s.dir); err != nil {
		return err
	}
	if err := s.reservePorts(); err != nil {
		return err
	}
	if s.keys, _, err = InitKeys(filepath.Join(s.dir, "keys")); err != nil {
		return err
	}
	if s.relayKeys, _, err = InitRelay(filepath.Join(s.dir, "keys")); err != nil {
		return err
	}
	if err := s.initGateway(); err != nil {
		return err
	}
	s.log, err = os.OpenFile(s.LogFile(), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	return nil
}

// lockFolder makes this process the only one that uses a data folder, until the file is closed.
func lockFolder(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return file, nil
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fault.New(errcode.FailedPrecondition,
			"the data folder %s is in use by another system: stop it, or choose another folder", dir)
	} else {
		err = fmt.Errorf("lock the data folder: %w", err)
	}
	return nil, errors.Join(err, file.Close())
}

func (s *Stack) startDatabase(ctx context.Context) error {
	if s.opts.DatabaseURL != "" {
		for _, service := range pgroles.Services() {
			if err := s.writeDatabaseURL(service, s.opts.DatabaseURL); err != nil {
				return err
			}
		}
		return nil
	}
	done := s.progress.step("PostgreSQL")
	options := pg.Options{Port: s.databasePort, Progress: func(string) {}}
	if !s.temporary {
		options.Data = filepath.Join(s.dir, "postgres")
	}
	server, err := pg.Start(ctx, options)
	if err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	s.database = server
	done("%d, private, on port %d", server.Version(), server.Port())
	return s.createRoles(ctx, server.URL())
}

// checkDatabase returns an error if a running PostgreSQL does not answer. Services would wait for it.
func checkDatabase(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		why := cmp.Or(client.Reason(err), err.Error())
		return fault.Wrap(err, errcode.Unavailable, "cannot use PostgreSQL at %s: %s", config.URL(url), why)
	}
	if err := conn.Close(ctx); err != nil {
		return fmt.Errorf("close the connection to PostgreSQL: %w", err)
	}
	return nil
}

// createRoles gives each service a role of its own.
func (s *Stack) createRoles(ctx context.Context, admin string) error {
	passwords, _, err := InitDatabase(filepath.Join(s.dir, "keys", "postgres"))
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	err = pgroles.Apply(ctx, conn, passwords)
	if err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))); err != nil {
		return fmt.Errorf("create the roles of services: %w", err)
	}
	for service, password := range passwords {
		url, err := pgroles.URL(admin, service, password)
		if err != nil {
			return fmt.Errorf("role of %s: %w", service, err)
		}
		if err := s.writeDatabaseURL(service, url); err != nil {
			return err
		}
	}
	return nil
}

// writeDatabaseURL writes the database URL of a service, with the password, to a file.
func (s *Stack) writeDatabaseURL(service, url string) error {
	if err := os.WriteFile(s.databaseURLFile(service), []byte(url+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the database URL: %w", err)
	}
	return nil
}

func (s *Stack) startNATS(context.Context) error {
	if s.opts.NATSURL != "" {
		s.progress.printf("NATS", "%s", s.opts.NATSURL)
		return nil
	}
	done := s.progress.step("NATS")
	report, err := natsauth.Init(s.natsDir(), natsauth.Options{
		Cell: s.opts.Cell, Principals: s.opts.NATSPrincipals, MapCells: s.opts.MapCells,
	})
	if err != nil {
		return fmt.Errorf("configure NATS: %w", err)
	}
	server, err := natsd.Start(natsd.Options{
		ConfigFile: report.ConfigFile, StoreDir: filepath.Join(s.dir, "jetstream"), Port: s.opts.NATSPort,
		Logger: telemetry.NewLogger(s.telemetry(), "nats", s.log),
	})
	if err != nil {
		return fmt.Errorf("start NATS: %w", err)
	}
	s.nats = server
	done("embedded, %s", server.ClientURL())
	return nil
}

func (s *Stack) startCluster(ctx context.Context) error {
	if s.opts.Kubeconfig != "" {
		s.kubeconfig = s.opts.Kubeconfig
		s.progress.printf("Kubernetes", "the cluster of %s", s.opts.Kubeconfig)
		return nil
	}
	done := s.progress.step("Kubernetes")
	options := lab.Options{Name: "lockstep", Nodes: s.opts.Nodes, Progress: s.progress.indented(), Output: s.log}
	if !s.temporary {
		options.Data = filepath.Join(s.dir, "kubelab")
	}
	if s.opts.Gateway {
		options.WorkspaceAgent = s.opts.WorkspaceAgent
	}
	started, err := lab.Start(ctx, options)
	if err != nil {
		return fmt.Errorf("start the Kubernetes control plane: %w", err)
	}
	s.lab, s.kubeconfig = started, started.Kubeconfig()
	done("kubelab, %s", started.Server())
	return nil
}

// Stop stops everything in the reverse order of its start and, for a temporary stack, removes what
// it wrote.
func (s *Stack) Stop() error {
	s.mu.Lock()
	services := slices.Clone(s.services)
	s.mu.Unlock()
	var errs []error
	for _, each := range slices.Backward(services) {
		errs = append(errs, each.stop(), each.release())
	}
	dependencies := []func() error{}
	if s.lab != nil {
		dependencies = append(dependencies, s.lab.Stop)
	}
	if s.nats != nil {
		dependencies = append(dependencies, s.nats.Stop)
	}
	if s.database != nil {
		dependencies = append(dependencies, func() error {
			ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
			defer cancel()
			return s.database.Stop(ctx)
		})
	}
	results := make(chan error, len(dependencies))
	for _, stop := range dependencies {
		go func() { results <- stop() }()
	}
	for range dependencies {
		errs = append(errs, <-results)
	}
	for _, each := range s.held {
		errs = append(errs, each.Release())
	}
	if s.log != nil {
		errs = append(errs, s.log.Close())
	}
	if s.lock != nil {
		// Closing is not enough: a process that is being started may still have the file.
		errs = append(errs, syscall.Flock(int(s.lock.Fd()), syscall.LOCK_UN), s.lock.Close())
	}
	if s.temporary && s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}

// APIURL is where the API listens.
func (s *Stack) APIURL() string { return s.apiURL }

// Kubeconfig of the cluster.
func (s *Stack) Kubeconfig() string { return s.kubeconfig }

// Kubectl is the kubectl program of kubelab and its first argument; without kubelab it is the one in PATH.
func (s *Stack) Kubectl() []string {
	if s.lab == nil {
		return []string{"kubectl"}
	}
	return []string{s.lab.Binary(), "kubectl"}
}

// NATS is the embedded server; nil where a running one was given.
func (s *Stack) NATS() *natsd.Server { return s.nats }

// natsURL has every NATS server.
func (s *Stack) natsURL() string {
	if s.nats == nil {
		return s.opts.NATSURL
	}
	return s.nats.ClientURL()
}

// Database is the private server; nil where a running one was given.
func (s *Stack) Database() *pg.Server { return s.database }

// AdminToken is the first administrator's personal access token.
func (s *Stack) AdminToken() (string, error) {
	raw, err := os.ReadFile(s.keys.AdminTokenFile)
	if err != nil {
		return "", fmt.Errorf("read the administrator's token: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// Dir holds everything that the stack writes.
func (s *Stack) Dir() string { return s.dir }

// LogFile is where every service writes its log.
func (s *Stack) LogFile() string { return filepath.Join(s.dir, "lockstep.log") }

// ClientFile is the client configuration for this stack's administrator.
func (s *Stack) ClientFile() string { return filepath.Join(s.dir, "client.yaml") }

func (s *Stack) natsDir() string { return cmp.Or(s.opts.NATSDir, filepath.Join(s.dir, "nats")) }

func (s *Stack) databaseURLFile(service string) string {
	return filepath.Join(s.dir, "keys", service+".database.url")
}

// servicesDir holds the configuration of services that run as separate processes.
func (s *Stack) servicesDir() string { return filepath.Join(s.dir, "services") }

const tailBytes = 4 << 10

// logTail is the end of the log.
func (s *Stack) logTail() string {
	if s.log == nil {
		return ""
	}
	info, err := s.log.Stat()
	if err != nil {
		return ""
	}
	tail := io.NewSectionReader(s.log, max(0, info.Size()-tailBytes), tailBytes)
	raw, err := io.ReadAll(tail)
	if err != nil {
		return ""
	}
	return string(raw)
}
