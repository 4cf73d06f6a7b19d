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

	"lockstep.internal/tools/testkit/lab"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fakeKubelab prints what kubelab prints, without a control plane. The flag --name selects its behavior.
const fakeKubelab = `package main

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
	case strings.Contains(args, "--name=fails"):
		fmt.Fprintln(os.Stderr, "etcd: no space left on device")
		os.Exit(3)
	case strings.Contains(args, "--name=never-ready"):
	case strings.Contains(args, "--name=malformed"):
		fmt.Println("hello")
	default:
		fmt.Println("{\"kubeconfig\":\"/k\",\"server\":\"https://127.0.0.1:1\",\"log\":\"/l\"}")
	}
	if strings.Contains(args, "--name=exits") {
		fmt.Fprintln(os.Stderr, "kube-apiserver: exited")
		os.Exit(1)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}
`

// repository creates a repository with this kubelab.
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

// transcript is a buffer that can be read while it is written.
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
	var output transcript
	l, err := lab.Start(t.Context(), lab.Options{
		Root:       repository(t, fakeKubelab),
		Name:       "n",
		Nodes:      3,
		Data:       "/d",
		Kubeconfig: "/k",
		NodeGrace:  time.Minute,
		Progress:   &output,
	})
	require.NoError(t, err)
	require.Equal(t, "/k", l.Kubeconfig())
	require.Equal(t, "https://127.0.0.1:1", l.Server())
	require.Equal(t, "/l", l.Log())
	require.NoError(t, l.Err())
	require.NoError(t, l.Stop())
	require.NoError(t, l.Stop(), "a second stop does nothing")
	<-l.Done()
	require.Contains(t, output.String(), "building the Kubernetes control plane")
	require.Contains(t, output.String(),
		"started with up --exit-with-parent --ready-file=- --name=n --nodes=3 --data=/d --kubeconfig=/k --node-grace=1m0s")
}

func TestStartErrorHasTheOutput(t *testing.T) {
	t.Parallel()
	binary, err := lab.Binary(t.Context(), lab.Options{Root: repository(t, fakeKubelab)})
	require.NoError(t, err)
	for name, want := range map[string]string{
		"fails":     "no space left on device",
		"malformed": "hello",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := lab.Start(t.Context(), lab.Options{Binary: binary, Name: name})
			require.ErrorContains(t, err, want)
		})
	}
	t.Run("never-ready", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		var output transcript
		failed := make(chan error, 1)
		go func() {
			_, err := lab.Start(ctx, lab.Options{Binary: binary, Name: "never-ready", Progress: &output})
			failed <- err
		}()
		require.Eventually(
			t, func() bool { return strings.Contains(output.String(), "started") }, time.Minute, 5*time.Millisecond,
		)
		cancel()
		require.ErrorIs(t, <-failed, context.Canceled)
	})
	t.Run("exits", func(t *testing.T) {
		t.Parallel()
		l, err := lab.Start(t.Context(), lab.Options{Binary: binary, Name: "exits"})
		require.NoError(t, err)
		<-l.Done()
		require.ErrorContains(t, l.Err(), "kube-apiserver: exited")
		require.Error(t, l.Stop())
	})
}

func TestBinaryIsRebuiltOnlyWhenSourcesChange(t *testing.T) {
	t.Parallel()
	root := repository(t, fakeKubelab)
	var output transcript
	var group sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		group.Go(func() { _, errs[i] = lab.Binary(t.Context(), lab.Options{Root: root, Progress: &output}) })
	}
	group.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, 1, strings.Count(output.String(), "built the Kubernetes control plane"))

	write(t, filepath.Join(root, "tools/kubelab/main_test.go"), "package main\n")
	_, err := lab.Binary(t.Context(), lab.Options{Root: root, Progress: &output})
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(output.String(), "built the Kubernetes control plane"), "tests are not sources")

	write(t, filepath.Join(root, "tools/kubelab/main.go"), fakeKubelab+"\n// changed\n")
	path, err := lab.Binary(t.Context(), lab.Options{Root: root, Progress: &output})
	require.NoError(t, err)
	require.Equal(t, filepath.Join(root, "bin", "kubelab"), path)
	require.Equal(t, 2, strings.Count(output.String(), "built the Kubernetes control plane"))
}

func TestBuildErrorHasTheOutput(t *testing.T) {
	t.Parallel()
	_, err := lab.Binary(
		t.Context(), lab.Options{Root: repository(t, "package main\n\nfunc main() { undefinedThing() }\n")},
	)
	require.ErrorContains(t, err, "undefined: undefinedThing")
}

func TestMissingRepositoryOrBinary(t *testing.T) {
	t.Parallel()
	_, err := lab.Binary(t.Context(), lab.Options{Root: t.TempDir(), Path: []string{t.TempDir()}})
	require.ErrorIs(t, err, lab.ErrNoRepository)
	_, err = lab.Binary(t.Context(), lab.Options{Binary: filepath.Join(t.TempDir(), "kubelab")})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestProgramInPathIsUsedWithoutRepository(t *testing.T) {
	t.Parallel()
	first, second := t.TempDir(), t.TempDir()
	write(t, filepath.Join(first, "kubelab"), "not executable")
	want := filepath.Join(second, "kubelab")
	require.NoError(t, os.WriteFile(want, []byte("#!/bin/sh\n"), 0o700))
	got, err := lab.Binary(t.Context(), lab.Options{Root: t.TempDir(), Path: []string{first, second}})
	require.NoError(t, err)
	require.Equal(t, want, got)
}
