package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// timeout of every wait.
	timeout = 2 * time.Minute
	tick    = 50 * time.Millisecond
	// settle is the duration of a check that something does not happen.
	settle = 2 * time.Second
)

// program is the kubelab under test, temporary the folder for what the labs leave when they are killed.
var program, temporary string

// shared is the lab of most tests. Each has its own namespace.
var shared = sync.OnceValues(func() (*process, error) { return launch("--name=shared") })

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "kubelab-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if program, err = builtProgram(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	temporary = dir
	started := false
	startShared := shared
	shared = func() (*process, error) { started = true; return startShared() }
	code := m.Run()
	if started {
		if p, err := startShared(); err == nil {
			_ = p.stop(syscall.SIGTERM)
		}
	}
	return code
}

// builtProgram returns the path of the program as `make kubelab` builds it. It is built first if that is needed.
func builtProgram() (string, error) {
	build := exec.Command("go", "run", "./tools/testkit/lab/build")
	build.Dir = "../../.." // the workspace
	build.Env = append(os.Environ(), "GOWORK=")
	build.Stderr = os.Stderr
	path, err := build.Output()
	if err != nil {
		return "", fmt.Errorf("build kubelab: %w", err)
	}
	return strings.TrimSpace(string(path)), nil
}

// info is the line that a lab prints when it is ready.
type info struct {
	Name       string `json:"name"`
	Kubeconfig string `json:"kubeconfig"`
	Server     string `json:"server"`
	Data       string `json:"data"`
	Temporary  bool   `json:"temporary"`
	DNS        string `json:"dns"`
}

// process is a running kubelab.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	// stderr is the read end of the lab's progress.
	stderr io.Closer
	info   info
	ended  chan struct{}
	err    error
}

// launch starts a lab and returns when it is ready.
func launch(args ...string) (*process, error) {
	cmd := exec.Command(program, append([]string{"up", "--exit-with-parent", "--ready-file=-"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+temporary)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	progress, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = writer
	err = cmd.Start()
	_ = writer.Close()
	if err != nil {
		return nil, err
	}
	go func() { _, _ = io.Copy(os.Stderr, progress) }()
	p := &process{cmd: cmd, stdin: stdin, stderr: progress, ended: make(chan struct{})}
	line, readErr := bufio.NewReader(stdout).ReadBytes('\n')
	go func() {
		defer close(p.ended)
		p.err = cmd.Wait()
	}()
	if readErr != nil {
		<-p.ended
		return nil, fmt.Errorf("the lab exited before it was ready: %w", p.err)
	}
	if err := json.Unmarshal(line, &p.info); err != nil {
		return nil, fmt.Errorf("ready line %q: %w", line, err)
	}
	return p, nil
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	p, err := launch(args...)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = p.stop(syscall.SIGTERM)
	})
	return p
}

// stop sends a signal and returns the error of the lab.
func (p *process) stop(signal os.Signal) error {
	_ = p.cmd.Process.Signal(signal)
	<-p.ended
	return p.err
}

func (p *process) client(t *testing.T) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", p.info.Kubeconfig)
	require.NoError(t, err)
	config.QPS, config.Burst = 100, 200
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

// cluster is a namespace of the shared lab.
type cluster struct {
	kubernetes.Interface

	namespace string
}

func newCluster(t *testing.T) cluster {
	t.Helper()
	p, err := shared()
	require.NoError(t, err)
	return namespaceIn(t, p.client(t), nil)
}

func namespaceIn(t *testing.T, client kubernetes.Interface, labels map[string]string) cluster {
	t.Helper()
	ns, err := client.CoreV1().Namespaces().Create(t.Context(),
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Labels: labels}}, metav1.CreateOptions{})
	require.NoError(t, err)
	c := cluster{Interface: client, namespace: ns.Name}
	eventually(t, "the namespace's service account", func(ctx context.Context) bool {
		_, err := client.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	})
	return c
}

func eventually(t *testing.T, what string, condition func(context.Context) bool) {
	t.Helper()
	require.Eventually(t, func() bool { return condition(t.Context()) }, timeout, tick, what)
}
