package kube_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/kube"
)

var errCrashed = errors.New("crashed")

// crash is a transport that fails after a number of writes, as if the process had ended. The last write is either
// not sent, or done and its response lost.
type crash struct {
	next http.RoundTripper

	mu      sync.Mutex
	left    int
	lost    bool // the response is lost, not the request
	crashed bool
}

func (c *crash) RoundTrip(request *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.crashed {
		return nil, errCrashed
	}
	if request.Method != http.MethodGet && !request.URL.Query().Has("dryRun") {
		c.left--
		if c.left < 0 {
			c.crashed = true
			if c.lost {
				if response, err := c.next.RoundTrip(request); err == nil {
					_ = response.Body.Close()
				}
			}
			return nil, errCrashed
		}
	}
	return c.next.RoundTrip(request)
}

// WrappedRoundTripper lets idle connections be closed.
func (c *crash) WrappedRoundTripper() http.RoundTripper { return c.next }

func (c *crash) happened() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.crashed
}

// crashingLeader returns a leader that crashes at a write.
func (b *fixture) crashingLeader(t *testing.T, writes int, lost bool) (*kube.Cluster, *crash) {
	t.Helper()
	c := &crash{left: writes, lost: lost}
	cfg := admin(t)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		c.next = next
		return c
	})
	client := newClient(t, cfg)
	return kube.NewCluster(client, b.policy, kube.NewNamespaces(client, b.agent, func(string) {})), c
}

// requireKnown checks that no object exists that the inventory does not hold.
func (b *fixture) requireKnown(t *testing.T, w desired.Workspace) {
	t.Helper()
	var known []desired.Reference
	if _, text, found := strings.Cut(b.inventory(t, w), " "); found {
		require.NoError(t, json.Unmarshal([]byte(text), &known))
	}
	names := map[string]bool{}
	for _, reference := range known {
		names[reference.Name] = true
	}
	for _, name := range b.existing(t, w) {
		require.True(t, names[name], "%s exists and the inventory does not hold it", name)
	}
}

// TestCrashAtAnyWriteConverges crashes before and after each write of each stage of a workspace. A new leader
// continues.
func TestCrashAtAnyWriteConverges(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		name := "before the write"
		if lost {
			name = "after the write"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for writes := range mostWrites + 1 {
				t.Run(strconv.Itoa(writes), func(t *testing.T) {
					t.Parallel()
					b := newFixture(t)
					b.leader(t, admin(t))
					crashes := b.runLifecycle(t, writes, lost)
					switch {
					case writes < leastWrites:
						require.Equal(t, 3, crashes, "each stage writes more often than that")
					case writes == mostWrites:
						require.Zero(t, crashes, "no stage has as many writes, so all writes are covered")
					}
				})
			}
		})
	}
}

// leastWrites and mostWrites are the bounds of the number of writes per stage.
const (
	leastWrites = 3
	mostWrites  = 8
)

// runLifecycle runs one workspace through all stages, with a crash at the given write of each stage. It returns the
// number of crashes.
func (b *fixture) runLifecycle(t *testing.T, writes int, lost bool) int {
	t.Helper()
	crashes := 0
	ctx := testContext(t)
	w := b.with(b.workspace(), 1, configMap("a", "1"), configMap("b", "1"), volume("data", "1Gi"))
	w.Secrets = []events.SecretReference{{Name: "variables", Digest: "d1"}}
	changed := b.with(w, 2, configMap("b", "2"), configMap("c", "2"))
	changed.Secrets = nil
	for _, stage := range []struct {
		desired desired.Workspace
		want    []string
	}{{w, []string{"a", "b", "data"}}, {changed, []string{"b", "c"}}} {
		leader, c := b.crashingLeader(t, writes, lost)
		_, err := leader.Apply(ctx, stage.desired, b.secrets)
		if c.happened() {
			crashes++
			require.Error(t, err)
		} else {
			require.NoError(t, err)
		}
		b.requireKnown(t, w)
		applied, err := b.leader(t, admin(t)).Apply(ctx, stage.desired, b.secrets)
		require.NoError(t, err)
		require.Equal(t, stage.desired.References(), applied.Objects)
		require.Eventually(t, func() bool { return len(b.existing(t, w)) == len(stage.want) }, timeout, tick)
		require.ElementsMatch(t, stage.want, b.existing(t, w))
		b.requireKnown(t, w)
	}
	end := b.terminated(w, 3)
	leader, c := b.crashingLeader(t, writes, lost)
	for remaining := true; remaining && !c.happened(); {
		list, err := leader.Terminate(ctx, end)
		if c.happened() {
			crashes++
			require.Error(t, err)
		} else {
			require.NoError(t, err)
		}
		remaining = len(list.Objects) > 0
	}
	b.requireKnown(t, w)
	terminate(t, b.leader(t, admin(t)), end)
	require.Empty(t, b.inventory(t, w))
	_, err := b.admin.CoreV1().Namespaces().Get(ctx, w.Namespace, metav1.GetOptions{})
	require.Error(t, err)
	return crashes
}
