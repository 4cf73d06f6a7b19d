package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"lockstep.internal/tools/kubelab/controlplane"
	"lockstep.internal/tools/kubelab/dns"
	"lockstep.internal/tools/kubelab/endpoint"
	"lockstep.internal/tools/kubelab/kubelet"
	"lockstep.internal/tools/kubelab/pki"
	"lockstep.internal/tools/kubelab/process"
	"lockstep.internal/tools/kubelab/volume"
)

// Config describes a lab.
type Config struct {
	// Name names the cluster in the kubeconfig. Defaults to "kubelab".
	Name string
	// Data is the folder of the lab's data. Defaults to a temporary one.
	Data string
	// Nodes is the minimum number of nodes. Defaults to 2.
	Nodes int
	// Kubeconfig is the file to write. Defaults to one in the data folder.
	Kubeconfig string
	// NodeGrace is the node monitor grace period, at least 8 s, the duration of a node lease. Defaults to 20 s.
	NodeGrace time.Duration
	// StartTimeout bounds the start. Defaults to 3 min.
	StartTimeout time.Duration
	// WorkspaceAgent is the program that runs in place of the workspace agents of pods. Defaults to none: all pods are
	// simulated.
	WorkspaceAgent string
	// Progress receives progress messages. Defaults to io.Discard.
	Progress io.Writer
}

// Info has the addresses and files of a ready lab.
type Info struct {
	Name       string `json:"name"`
	Kubeconfig string `json:"kubeconfig"`
	Server     string `json:"server"`
	Data       string `json:"data"`
	Log        string `json:"log"`
	Temporary  bool   `json:"temporary"`
	// DNS is the address of the DNS server with the names of Services; empty without WorkspaceAgent.
	DNS string `json:"dns,omitempty"`
	PID int    `json:"pid"`
}

func (c Config) withDefaults() (Config, error) {
	if c.Name == "" {
		c.Name = "kubelab"
	}
	if c.Nodes == 0 {
		c.Nodes = 2
	}
	if c.NodeGrace == 0 {
		c.NodeGrace = 20 * time.Second
	}
	if c.StartTimeout == 0 {
		c.StartTimeout = 3 * time.Minute
	}
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	var err error
	if c.Nodes < 0 {
		err = errors.Join(err, fmt.Errorf("%d nodes: a lab has at least one", c.Nodes))
	}
	if c.NodeGrace < 8*time.Second {
		err = errors.Join(err, fmt.Errorf("node grace %s is shorter than a node lease, 8s", c.NodeGrace))
	}
	if c.Kubeconfig != "" {
		err = errors.Join(err, pki.CheckKubeconfigPath(c.Kubeconfig, c.Name))
	}
	if c.WorkspaceAgent != "" {
		path, lookErr := exec.LookPath(c.WorkspaceAgent)
		if lookErr == nil {
			path, lookErr = filepath.Abs(path)
		}
		if lookErr != nil {
			err = errors.Join(err, fmt.Errorf("find the workspace agent: %w", lookErr))
		}
		c.WorkspaceAgent = path
	}
	return c, err
}

// Run runs a lab until ctx ends (no error) or a component fails. ready is called once.
func Run(ctx context.Context, config Config, ready func(Info) error) (err error) {
	config, err = config.withDefaults()
	if err != nil {
		return err
	}
	sweep(time.Now())
	files, err := openFolder(ctx, config.Data)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.close()) }()
	log, err := openLog(files.log())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()

	l := &lab{config: config, files: files, log: log, progress: progress{w: config.Progress}}
	defer l.stop()
	if err := l.run(ctx, ready); err != nil {
		return withTail(err, files.log(), !files.temporary)
	}
	return nil
}

// lab is a lab that runs or starts.
type lab struct {
	config       Config
	files        *folder
	log          *os.File
	progress     progress
	bundle       pki.Bundle
	kubeletCerts pki.KubeletCerts
	server       string
	// kubelets is the port of the kubelets.
	kubelets int32
	client   kubernetes.Interface
	// processes runs pods as processes; nil unless that was asked for.
	processes *process.Runner
	// dns is the address of the DNS server.
	dns   string
	parts []*controlplane.Part
}

func (l *lab) run(ctx context.Context, ready func(Info) error) error {
	l.progress.printf("kubelab %s: Kubernetes %s in %s, log in %s", l.config.Name, kubelet.Version, l.files.data,
		l.files.log())
	// The components outlive ctx, so that they can be stopped in order.
	live := context.WithoutCancel(ctx)
	began := time.Now()
	starting, cancel := context.WithTimeoutCause(ctx, l.config.StartTimeout,
		fmt.Errorf("the lab was not ready within %s", l.config.StartTimeout))
	defer cancel()

	err := l.start(starting, live)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	info := Info{
		Name: l.config.Name, Kubeconfig: l.kubeconfigPath(), Server: l.server, Data: l.files.data,
		Log: l.files.log(), Temporary: l.files.temporary, PID: os.Getpid(), DNS: l.dns,
	}
	l.progress.printf("ready in %.1fs: export KUBECONFIG=%s", time.Since(began).Seconds(), info.Kubeconfig)
	if err := ready(info); err != nil {
		return err
	}
	return l.watch(ctx)
}

func (l *lab) start(ctx, live context.Context) (err error) {
	listener, err := l.listen(ctx)
	if err != nil {
		return err
	}
	if l.bundle, err = pki.Ensure(l.files.pki(), controlplane.ServiceIP(), time.Now()); err != nil {
		return errors.Join(err, listener.Close())
	}
	if l.kubeletCerts, err = pki.NewKubeletCerts(l.files.kubeletCerts(), time.Now()); err != nil {
		return errors.Join(err, listener.Close())
	}
	etcd := controlplane.Etcd{
		DataDir: l.files.etcd(), SocketDir: l.files.run, Durable: !l.files.temporary, Log: l.log,
	}
	readyEtcd := l.progress.begin("etcd")
	part, err := controlplane.StartEtcd(live, etcd)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	l.parts = append(l.parts, part)
	readyEtcd()

	part, err = controlplane.StartAPIServer(live, controlplane.APIServer{
		Bundle: l.bundle, KubeletCerts: l.kubeletCerts, EtcdURL: etcd.URL(), Listener: listener,
	})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	l.parts = append(l.parts, part)
	if l.client, err = l.newClient(pki.Admin); err != nil {
		return err
	}
	if err := l.await(ctx, "kube-apiserver", l.checkAPI); err != nil {
		return err
	}
	if err := volume.EnsureClass(ctx, l.client); err != nil {
		return err
	}
	if err := kubelet.RegisterNodes(ctx, l.client, l.config.Nodes); err != nil {
		return err
	}
	if err := l.startEndpoint(ctx, live); err != nil {
		return err
	}
	if err := l.startRest(live); err != nil {
		return err
	}
	if err := l.await(ctx, "kube-controller-manager", l.checkControllers); err != nil {
		return err
	}
	if err := l.await(ctx, "nodes",
		func(ctx context.Context) error { return kubelet.CheckNodes(ctx, l.client, l.kubelets) }); err != nil {
		return err
	}
	return l.writeKubeconfig(pki.Admin, l.kubeconfigPath())
}

// startEndpoint starts the API of the kubelets.
func (l *lab) startEndpoint(ctx, live context.Context) error {
	config, err := l.kubeletCerts.ServerTLS()
	if err != nil {
		return err
	}
	client, err := l.newClient(pki.Kubelets)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the kubelets: %w", err)
	}
	if tcp, ok := listener.Addr().(*net.TCPAddr); ok {
		l.kubelets = int32(tcp.Port)
	}
	if l.config.WorkspaceAgent != "" {
		if err := l.startProcesses(ctx, live, client); err != nil {
			return errors.Join(err, listener.Close())
		}
	}
	server := &endpoint.Server{Client: client, Clock: clock.RealClock{}, Processes: l.processes, Log: l.log}
	l.parts = append(l.parts, controlplane.Go(live, "kubelets' endpoint", func(ctx context.Context) error {
		return server.Serve(ctx, listener, config)
	}))
	return nil
}

// startProcesses starts the kubelet that runs workspace agents as processes, and the DNS server that knows where they
// listen.
func (l *lab) startProcesses(ctx, live context.Context, client kubernetes.Interface) error {
	var lc net.ListenConfig
	conn, err := lc.ListenPacket(ctx, "udp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for DNS: %w", err)
	}
	l.dns = conn.LocalAddr().String()
	l.processes = &process.Runner{
		Client: client, Program: l.config.WorkspaceAgent, Folder: l.files.pods(), Claims: l.files.volumes(),
	}
	l.parts = append(l.parts,
		controlplane.Go(live, "DNS", func(ctx context.Context) error { return dns.Server{Client: client}.Serve(ctx, conn) }),
		controlplane.Go(live, "processes", l.processes.Run))
	return nil
}

// startRest starts the components that use the API.
func (l *lab) startRest(live context.Context) error {
	for identity, path := range map[pki.Identity]string{
		pki.ControllerManager: l.componentKubeconfig(pki.ControllerManager),
		pki.Scheduler:         l.componentKubeconfig(pki.Scheduler),
	} {
		if err := l.writeKubeconfig(identity, path); err != nil {
			return err
		}
	}
	controllers, err := controlplane.StartControllers(live, controlplane.Controllers{
		Bundle: l.bundle, Kubeconfig: l.componentKubeconfig(pki.ControllerManager), NodeGrace: l.config.NodeGrace,
	})
	if err != nil {
		return err
	}
	l.parts = append(l.parts, controllers)
	scheduler, err := controlplane.StartScheduler(live, controlplane.Scheduler{
		Kubeconfig: l.componentKubeconfig(pki.Scheduler), Dir: l.files.components(), Unschedulable: kubelet.IsUnschedulable,
	})
	if err != nil {
		return err
	}
	l.parts = append(l.parts, scheduler)

	config, err := l.restConfig(pki.Kubelets)
	if err != nil {
		return err
	}
	player := kubelet.Simulator{
		Config: config, Holder: "kubelab", Port: l.kubelets, Processes: l.processes != nil, Log: l.log,
	}
	l.parts = append(l.parts, controlplane.Go(live, "kubelets", player.Run))

	provisioner, err := volume.NewProvisioner(l.client)
	if err != nil {
		return err
	}
	l.parts = append(l.parts, controlplane.Go(live, "volume provisioner", provisioner.Run))
	return nil
}

// listen takes the port that the lab had before, or a free one.
func (l *lab) listen(ctx context.Context) (net.Listener, error) {
	before, err := l.files.loadState()
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(before.Port)))
	if err != nil && before.Port != 0 {
		l.progress.printf("port %d of the last run is taken: the kubeconfig changes", before.Port)
		listener, err = lc.Listen(ctx, "tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, fmt.Errorf("listen for the API server: %w", err)
	}
	l.server = "https://" + listener.Addr().String()
	after := state{}
	if tcp, ok := listener.Addr().(*net.TCPAddr); ok {
		after.Port = tcp.Port
	}
	if err := l.files.saveState(after); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// await polls check until it succeeds, a part fails or ctx ends.
func (l *lab) await(ctx context.Context, name string, check func(context.Context) error) error {
	done := l.progress.begin(name)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			done()
			return nil
		}
		for _, part := range l.parts {
			if part.Err() != nil {
				return part.Err()
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last error: %w", name, context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

func (l *lab) checkAPI(ctx context.Context) error {
	err := l.client.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("call the API server: %w", err)
	}
	return nil
}

// checkControllers returns nil when the controllers have created the objects that pods in the default namespace need.
func (l *lab) checkControllers(ctx context.Context) error {
	if _, err := l.client.CoreV1().
		ServiceAccounts(metav1.NamespaceDefault).
		Get(ctx, "default", metav1.GetOptions{}); err != nil {
		return fmt.Errorf("get the default service account: %w", err)
	}
	if _, err := l.client.CoreV1().
		ConfigMaps(metav1.NamespaceDefault).
		Get(ctx, "kube-root-ca.crt", metav1.GetOptions{}); err != nil {
		return fmt.Errorf("get the root certificate: %w", err)
	}
	return nil
}

// watch waits for the end of ctx, or of a part.
func (l *lab) watch(ctx context.Context) error {
	failed := make(chan *controlplane.Part, len(l.parts))
	for _, part := range l.parts {
		go func() {
			<-part.Done()
			failed <- part
		}()
	}
	select {
	case <-ctx.Done():
		return nil
	case part := <-failed:
		return part.Err()
	}
}

// stop ends the parts, the last started first. A component that does not stop in time ends with the process.
func (l *lab) stop() {
	began := time.Now()
	l.progress.printf("stopping")
	for _, part := range slices.Backward(l.parts) {
		if err := part.Stop(5 * time.Second); err != nil {
			l.progress.printf("  %s", err)
		}
	}
	if l.files.temporary && l.config.Kubeconfig != "" {
		// Remove the kubeconfig of a temporary lab; it may not exist.
		_ = os.Remove(l.config.Kubeconfig)
	}
	l.progress.printf("stopped in %.1fs", time.Since(began).Seconds())
}

func (l *lab) kubeconfigPath() string {
	if l.config.Kubeconfig != "" {
		if abs, err := filepath.Abs(l.config.Kubeconfig); err == nil {
			return abs
		}
	}
	return l.files.kubeconfig()
}

func (l *lab) componentKubeconfig(identity pki.Identity) string {
	return filepath.Join(l.files.components(), string(identity)+".kubeconfig")
}

func (l *lab) writeKubeconfig(identity pki.Identity, path string) error {
	config, err := l.bundle.Kubeconfig(identity, l.config.Name, l.server)
	if err != nil {
		return err
	}
	return pki.WriteKubeconfig(config, path)
}

func (l *lab) restConfig(identity pki.Identity) (*rest.Config, error) {
	kubeconfig, err := l.bundle.Kubeconfig(identity, l.config.Name, l.server)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.NewDefaultClientConfig(*kubeconfig, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("create a client configuration: %w", err)
	}
	config.QPS, config.Burst = 200, 400
	config.UserAgent = "kubelab"
	return config, nil
}

func (l *lab) newClient(identity pki.Identity) (kubernetes.Interface, error) {
	config, err := l.restConfig(identity)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	return client, nil
}
