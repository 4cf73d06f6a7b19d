package objectstest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"lockstep.internal/services/runners/objects"
)

// childVariable makes the test program a process that stores one object.
const childVariable = "LOCKSTEP_TEST_OBJECTS"

// childTimeout bounds the life of a child, should its parent hang.
const childTimeout = 2 * time.Minute

// task of a child.
type task struct {
	Config objects.Config `yaml:"config"`
	Key    string         `yaml:"key"`
	Size   int64          `yaml:"size"`
	// Stop keeps the content from ending: the child waits to be killed.
	Stop bool `yaml:"stop"`
}

// result of a child.
type result struct {
	Info objects.Info `json:"info"`
	// Allocated is the memory that Put has allocated in all, in bytes.
	Allocated uint64 `json:"allocated"`
}

// Child stores an object and exits, if this process is a child of a test. Otherwise it returns.
func Child() {
	encoded, isChild := os.LookupEnv(childVariable)
	if !isChild {
		return
	}
	if err := runChild(encoded); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runChild(encoded string) error {
	var t task
	if err := yaml.Unmarshal([]byte(encoded), &t); err != nil {
		return fmt.Errorf("task of the child: %w", err)
	}
	store, err := objects.Open(t.Config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), childTimeout)
	defer cancel()
	content := newContent(t.Size, 1)
	if t.Stop {
		content = io.MultiReader(content, &stopped{ended: ctx.Done()})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	info, err := store.Put(ctx, t.Key, content, t.Size)
	runtime.ReadMemStats(&after)
	if err = errors.Join(err, store.Close()); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(result{info, after.TotalAlloc - before.TotalAlloc}); err != nil {
		return fmt.Errorf("result of the child: %w", err)
	}
	return nil
}

// stopped reports on stdout that it is read, and blocks.
type stopped struct{ ended <-chan struct{} }

func (s *stopped) Read([]byte) (int, error) {
	if _, err := fmt.Println("stopped"); err != nil {
		return 0, fmt.Errorf("report: %w", err)
	}
	<-s.ended
	return 0, errors.New("the child was not killed")
}

// start starts a child and returns the lines of its output.
func start(t *testing.T, todo task) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	encoded, err := yaml.Marshal(todo)
	require.NoError(t, err)
	program, err := os.Executable()
	require.NoError(t, err)
	child := exec.CommandContext(t.Context(), program) //nolint:gosec // this program
	child.Env = append(os.Environ(), childVariable+"="+string(encoded))
	child.Stderr = os.Stderr
	output, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	return child, bufio.NewScanner(output)
}

// killWhilePutting kills a process after it has stored size bytes of an object that is larger.
func killWhilePutting(t *testing.T, cfg objects.Config, key string, size int64) {
	t.Helper()
	child, lines := start(t, task{Config: cfg, Key: key, Size: size, Stop: true})
	require.True(t, lines.Scan(), "the child ended")
	require.Equal(t, "stopped", lines.Text())
	require.NoError(t, child.Process.Kill())
	require.ErrorContains(t, child.Wait(), "killed")
}

// putInChild stores an object in a process of its own.
func putInChild(t *testing.T, cfg objects.Config, key string, size int64) result {
	t.Helper()
	child, lines := start(t, task{Config: cfg, Key: key, Size: size})
	var text strings.Builder
	for lines.Scan() {
		text.WriteString(lines.Text())
	}
	require.NoError(t, child.Wait())
	var got result
	require.NoError(t, json.Unmarshal([]byte(text.String()), &got))
	return got
}
