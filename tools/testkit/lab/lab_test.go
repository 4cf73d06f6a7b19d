package lab_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"lockstep.internal/tools/testkit/lab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// standIn speaks as kubelab does, without a control plane. Its name says how it behaves.
const standIn = `package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	args := strings.Join(os.Args[1:], " ")
	fmt.Fprintln(os.Stderr, "started with", args)
	switch {
	case strings.Contains(args, "--name=broken"):
		fmt.Fprintln(os.Stderr, "etcd: no space left on device")
		os.Exit(3)
	case strings.Contains(args, "--name=silent"):
	case strings.Contains(args, "--name=garbled"):
		fmt.Println("hello")
	default:
		fmt.Println("{\"kubeconfig\":\"/k\",\"server\":\"https://127.0.0.1:1\",\"log\":\"/l\"}")
	}
	if strings.Contains(args, "--name=fleeting") {
		fmt.Fprintln(os.Stderr, "kube-apiserver: gone")
		os.Exit(1)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}
`

// repository makes a repository whose kubelab is the stand-in.
func repository(t *testing.T, main string) string {
	t.Helper()
	root := t.TempDir()
	write(t, filepath.Join(root, "go.work"), "go 1.26.0\n")
	write(t, filepath.Join(root, "tools/kubelab/go.mod"), "module example.test/kubelab\n\ngo 1.26.0\n")
	write(t, filepath.Join(root, "tools/kubelab/main.go"), main)
	return root
}

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

// transcript is an io.Writer that may be read while it is written.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
}

func (t *transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

func TestStartBuildsAndReturnsWhenReady(t *testing.T) {
	t.Parallel()
	var said transcript
	l, err := lab.Start(t.Context(), lab.Options{
		Root:       repository(t, standIn),
		Name:       "n",
		Nodes:      3,
		Data:       "/d",
		Kubeconfig: "/k",
		NodeGrace:  time.Minute,
		Progress:   &said,
	})
	require.NoError(t, err)
	require.Equal(t, "/k", l.Kubeconfig())
	require.Equal(t, "https://127.0.0.1:1", l.Server())
	require.Equal(t, "/l", l.Log())
	require.NoError(t, l.Err())
	require.NoError(t, l.Stop())
	require.NoError(t, l.Stop(), "a second stop does nothing")
	<-l.Done()
	require.Contains(t, said.String(), "building the Kubernetes control plane")
	require.Contains(t, said.String(),
		"started with up --exit-with-parent --ready-file=- --name=n --nodes=3 --data=/d --kubeconfig=/k --node-grace=1m0s")
}

func TestStartReportsWhatTheLabSaid(t *testing.T) {
	t.Parallel()
	binary, err := lab.Binary(t.Context(), lab.Options{Root: repository(t, standIn)})
	require.NoError(t, err)
	for name, want := range map[string]string{
		"broken":  "no space left on device",
		"garbled": "hello",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := lab.Start(t.Context(), lab.Options{Binary: binary, Name: name})
			require.ErrorContains(t, err, want)
		})
	}
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		var said transcript
		failed := make(chan error, 1)
		go func() {
			_, err := lab.Start(ctx, lab.Options{Binary: binary, Name: "silent", Progress: &said})
			failed <- err
		}()
		require.Eventually(
			t, func() bool { return strings.Contains(said.String(), "started") }, time.Minute, 5*time.Millisecond,
		)
		cancel()
		require.ErrorIs(t, <-failed, context.Canceled)
	})
	t.Run("fleeting", func(t *testing.T) {
		t.Parallel()
		l, err := lab.Start(t.Context(), lab.Options{Binary: binary, Name: "fleeting"})
		require.NoError(t, err)
		<-l.Done()
		require.ErrorContains(t, l.Err(), "kube-apiserver: gone")
		require.Error(t, l.Stop())
	})
}

func TestBinaryIsBuiltOnceAndAgainWhenItsSourcesChange(t *testing.T) {
	t.Parallel()
	root := repository(t, standIn)
	var said transcript
	var group sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		group.Go(func() { _, errs[i] = lab.Binary(t.Context(), lab.Options{Root: root, Progress: &said}) })
	}
	group.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, 1, strings.Count(said.String(), "built the Kubernetes control plane"))

	write(t, filepath.Join(root, "tools/kubelab/main_test.go"), "package main\n")
	_, err := lab.Binary(t.Context(), lab.Options{Root: root, Progress: &said})
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(said.String(), "built the Kubernetes control plane"), "tests are no sources")

	write(t, filepath.Join(root, "tools/kubelab/main.go"), standIn+"\n// changed\n")
	path, err := lab.Binary(t.Context(), lab.Options{Root: root, Progress: &said})
	require.NoError(t, err)
	require.Equal(t, filepath.Join(root, "bin", "kubelab"), path)
	require.Equal(t, 2, strings.Count(said.String(), "built the Kubernetes control plane"))
}

func TestBinaryShowsWhyABuildFails(t *testing.T) {
	t.Parallel()
	_, err := lab.Binary(
		t.Context(), lab.Options{Root: repository(t, "package main\n\nfunc main() { undefinedThing() }\n")},
	)
	require.ErrorContains(t, err, "undefined: undefinedThing")
}

func TestBinaryNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	_, err := lab.Binary(t.Context(), lab.Options{Root: t.TempDir()})
	require.ErrorIs(t, err, lab.ErrNoRepository)
	_, err = lab.Binary(t.Context(), lab.Options{Binary: filepath.Join(t.TempDir(), "kubelab")})
	require.ErrorIs(t, err, os.ErrNotExist)
}
