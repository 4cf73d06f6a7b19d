package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
)

func TestStopLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*process) error{
		"SIGTERM": func(p *process) error { return p.stop(syscall.SIGTERM) },
		"SIGINT":  func(p *process) error { return p.stop(os.Interrupt) },
		"parent is killed": func(p *process) error {
			// The kernel closes both pipes of a parent that exits.
			_ = p.stderr.Close()
			_ = p.stdin.Close()
			<-p.ended
			return p.err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			p := start(t, "--kubeconfig="+kubeconfig)
			require.Equal(t, kubeconfig, p.info.Kubeconfig)
			info, err := os.Stat(kubeconfig)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
			require.DirExists(t, p.info.Data)

			require.NoError(t, end(p))
			require.NoFileExists(t, kubeconfig)
			require.NoDirExists(t, filepath.Dir(p.info.Data), "the temporary folder with data and socket")
		})
	}
}

func TestNextLabRemovesKilledLab(t *testing.T) {
	t.Parallel()
	p := start(t)
	require.Error(t, p.stop(syscall.SIGKILL))
	run := filepath.Dir(p.info.Data)
	require.DirExists(t, run)
	// Only folders that are older than a minute are removed: a younger one may not be locked yet.
	old := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(filepath.Join(run, "lock"), old, old))

	other := start(t)
	// A lab of another test may be removing it.
	eventually(t, "the folder is removed", func(context.Context) bool {
		_, err := os.Stat(run)
		return errors.Is(err, fs.ErrNotExist)
	})
	require.DirExists(t, other.info.Data, "the folder of a running lab is not removed")
}

func TestDataFolderHasOneLab(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	start(t, "--data="+data)
	var stderr bytes.Buffer
	second := exec.CommandContext(t.Context(), program, "up", "--data="+data)
	second.Stderr = &stderr
	require.Error(t, second.Run())
	require.Contains(t, stderr.String(), "in use by another lab")
}

func TestLabWaitsForTheEndOfTheOneBeforeIt(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	before := start(t, "--data="+data)
	require.NoError(t, before.stdin.Close(), "as if its parent was killed")
	start(t, "--data="+data)
	<-before.ended
}

func TestRestartKeepsData(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]syscall.Signal{"stopped": syscall.SIGTERM, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := filepath.Join(t.TempDir(), "data")
			first := start(t, "--data="+data, "--name=kept")
			before, err := os.ReadFile(first.info.Kubeconfig)
			require.NoError(t, err)
			c := namespaceIn(t, first.client(t), nil)
			deploy(t, c, "web", 2, podSpec("nginx:1"))
			awaitAvailable(t, c, "web", 2)
			pods := podsOf(t, c, "web")
			require.Equal(t, end == syscall.SIGTERM, first.stop(end) == nil)
			require.DirExists(t, data)

			again := start(t, "--data="+data, "--name=kept")
			after, err := os.ReadFile(again.info.Kubeconfig)
			require.NoError(t, err)
			require.Equal(t, string(before), string(after), "certificates and address are the same")
			c.Interface = again.client(t)
			require.Equal(t, uids(pods), uids(podsOf(t, c, "web")), "the pods are the same")
			scale(t, c, "web", 3)
			awaitAvailable(t, c, "web", 3)
		})
	}
}

func TestLabsSideBySide(t *testing.T) {
	t.Parallel()
	one, two := start(t, "--name=one", "--nodes=1"), start(t, "--name=two", "--nodes=3")
	require.NotEqual(t, one.info.Server, two.info.Server)
	for p, nodes := range map[*process]int{one: 1, two: 3} {
		list, err := p.client(t).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, list.Items, nodes)
		config, err := clientcmd.LoadFromFile(p.info.Kubeconfig)
		require.NoError(t, err)
		require.Equal(t, p.info.Name, config.CurrentContext)
	}
	_, err := one.client(t).CoreV1().Namespaces().Create(t.Context(),
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "only-here"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = two.client(t).CoreV1().Namespaces().Get(t.Context(), "only-here", metav1.GetOptions{})
	require.Error(t, err)

	// A lab does not accept certificates of another lab.
	config, err := clientcmd.LoadFromFile(one.info.Kubeconfig)
	require.NoError(t, err)
	config.Clusters["one"].Server = two.info.Server
	config.Clusters["one"].CertificateAuthorityData = nil
	config.Clusters["one"].InsecureSkipTLSVerify = true
	crossed, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	require.NoError(t, err)
	requireUnauthorized(t, crossed)
}

func TestOtherKubeconfigsAreNotChanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	foreign := filepath.Join(dir, "foreign")
	config := "apiVersion: v1\nkind: Config\nclusters:\n- name: prod\n  cluster: {server: https://prod}\n"
	require.NoError(t, os.WriteFile(foreign, []byte(config), 0o600))
	mine := filepath.Join(dir, "mine")
	home := filepath.Join(dir, ".kube", "config")
	for _, path := range []string{foreign, mine, home} {
		var stderr bytes.Buffer
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, "up", "--kubeconfig="+path)
		cmd.Env = append(os.Environ(), "KUBECONFIG=/elsewhere:"+mine, "HOME="+dir)
		cmd.Stderr = &stderr
		require.Error(t, cmd.Run(), path)
		require.Contains(t, stderr.String(), "set another --kubeconfig", path)
	}
	content, err := os.ReadFile(foreign)
	require.NoError(t, err)
	require.Contains(t, string(content), "https://prod")
}
