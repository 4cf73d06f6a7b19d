package kube_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/libs/leader"
	"lockstep.internal/services/watcher/kube"
	"lockstep.internal/services/watcher/kube/kubetest"
	"lockstep.internal/services/watcher/object"
)

const timeout = time.Minute

// calls are the calls of a handler as text.
type calls chan string

func (c calls) Upserted(kind object.Kind, o object.Object, origin object.Origin) {
	origins := map[object.Origin]string{object.Initial: " initial", object.Found: " relisted"}
	c <- "upserted " + string(kind) + " " + o.GetName() + "@" + o.GetResourceVersion() + origins[origin]
}

func (c calls) Deleted(kind object.Kind, o object.Object, missed bool) {
	text := "deleted " + string(kind) + " " + o.GetName() + "@" + o.GetResourceVersion()
	if missed {
		text += " missed"
	}
	c <- text
}

func (c calls) VersionDecreased(kind object.Kind) { c <- "version decreased " + string(kind) }

func (c calls) next(t *testing.T) string {
	t.Helper()
	select {
	case call := <-c:
		return call
	case <-time.After(timeout):
		require.Fail(t, "the handler was not called")
		return ""
	}
}

func deployment(name, uid string, version int) *appsv1.Deployment {
	return &appsv1.Deployment{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(uid), ResourceVersion: strconv.Itoa(version),
			Labels:        map[string]string{"lockstep.dev/agent": "1"},
			Annotations:   map[string]string{"lockstep.dev/note": "kept", "example.org/other": "dropped"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}, Finalizers: []string{"f/f"},
		},
		Spec: appsv1.DeploymentSpec{
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeName: "dropped"}},
			Paused:   true,
		},
	}
}

func newClient(t *testing.T, server *kubetest.Server) *kube.Client {
	t.Helper()
	cfg := kube.DefaultConfig()
	cfg.Kubeconfig = server.Kubeconfig(t)
	client, err := kube.NewClient(cfg, "test", slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return client
}

// startWatch watches workspaces and returns after the first list.
func startWatch(t *testing.T, server *kubetest.Server) (*kube.Watch, calls) {
	t.Helper()
	return watchScope(t, server, kube.Workspaces("lockstep.dev/agent=1"))
}

func watchScope(t *testing.T, server *kubetest.Server, scope kube.Scope) (*kube.Watch, calls) {
	t.Helper()
	handled := make(calls, 100)
	ctx, cancel := context.WithCancel(t.Context())
	watch, err := newClient(t, server).Watch(ctx, scope, handled)
	require.NoError(t, err)
	t.Cleanup(watch.Wait)
	t.Cleanup(cancel)
	waiting, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	require.NoError(t, watch.WaitForSync(waiting))
	require.Eventually(t, func() bool {
		return server.Watching(kubetest.Deployments) == 1 && server.Watching(kubetest.ReplicaSets) == 1
	}, timeout, time.Millisecond)
	return watch, handled
}

func TestWatchReportsObjectsAndChanges(t *testing.T) {
	t.Parallel()
	server := kubetest.Start(t)
	server.Set(kubetest.Deployments, 10, deployment("a", "1", 5))
	_, handled := startWatch(t, server)
	require.Equal(t, "upserted deployment a@5 initial", handled.next(t))
	server.Send(kubetest.Deployments, "ADDED", deployment("b", "2", 11))
	require.Equal(t, "upserted deployment b@11", handled.next(t))
	server.Send(kubetest.Deployments, "DELETED", deployment("a", "1", 12))
	require.Equal(t, "deleted deployment a@12", handled.next(t), "the version of the deletion")
}

func TestExpiredWatchStartsAgain(t *testing.T) {
	t.Parallel()
	server := kubetest.Start(t)
	server.Set(kubetest.Deployments, 10,
		deployment("gone", "1", 5), deployment("kept", "2", 6), deployment("again", "3", 7), deployment("changed", "6", 8))
	_, handled := startWatch(t, server)
	for range 4 {
		require.Contains(t, handled.next(t), "initial")
	}
	server.Set(kubetest.Deployments, 20,
		deployment("kept", "2", 6), deployment("again", "4", 15), deployment("new", "5", 16), deployment("changed", "6", 17))
	server.Expire(20)
	changes := map[string]bool{}
	for range 5 {
		changes[handled.next(t)] = true
	}
	require.Equal(t, map[string]bool{
		"deleted deployment gone@5 missed":        true,
		"deleted deployment again@7 missed":       true,
		"upserted deployment again@15 relisted":   true,
		"upserted deployment new@16 relisted":     true,
		"upserted deployment changed@17 relisted": true,
	}, changes)
	require.Eventually(t, func() bool { return server.Watching(kubetest.Deployments) == 1 }, timeout, time.Millisecond)
	server.Send(kubetest.Deployments, "MODIFIED", deployment("changed", "6", 21))
	require.Equal(t, "upserted deployment changed@21", handled.next(t))
}

func TestDecreasedVersionIsReported(t *testing.T) {
	t.Parallel()
	server := kubetest.Start(t)
	server.Set(kubetest.Deployments, 10, deployment("a", "1", 9))
	_, handled := startWatch(t, server)
	require.Equal(t, "upserted deployment a@9 initial", handled.next(t))
	server.Set(kubetest.Deployments, 7, deployment("a", "1", 4))
	server.Expire(1 << 30)
	require.Equal(t, "version decreased deployment", handled.next(t))
	require.Equal(t, "upserted deployment a@4 relisted", handled.next(t))
}

func TestRefusedKindIsReportedUntilItSucceeds(t *testing.T) {
	t.Parallel()
	server := kubetest.Start(t)
	watch, _ := startWatch(t, server)
	require.NoError(t, watch.Err())
	server.Refuse(kubetest.Pods, http.StatusForbidden)
	server.Expire(1 << 30)
	require.Eventually(t, func() bool { return watch.Err() != nil }, timeout, time.Millisecond)
	require.ErrorContains(t, watch.Err(), "pods")
	server.Refuse(kubetest.Pods, 0)
	server.Expire(0)
	require.Eventually(t, func() bool { return watch.Err() == nil }, timeout, time.Millisecond)
}

func TestListTrimsObjectsAndUsesHeldOnes(t *testing.T) {
	t.Parallel()
	server := kubetest.Start(t)
	server.Set(kubetest.Deployments, 10, deployment("a", "1", 5), deployment("b", "2", 6))
	held := deployment("b", "2", 6)
	holds := func(key object.Key, version string) object.Object {
		if key.Name == "b" && version == "6" {
			return held
		}
		return nil
	}
	list, err := newClient(t, server).List(t.Context(), kube.Workspaces(""), object.Deployment, holds)
	require.NoError(t, err)
	require.Equal(t, "10", list.ResourceVersion)
	require.Len(t, list.Objects, 2)
	require.Same(t, held, list.Objects[1])
	decoded, err := object.Decode(list.Objects[0])
	require.NoError(t, err)
	a, ok := decoded.(*appsv1.Deployment)
	require.True(t, ok)
	require.Equal(t, "ns/a 1 5", a.Namespace+"/"+a.Name+" "+string(a.UID)+" "+a.ResourceVersion)
	require.Empty(t, a.ManagedFields)
	require.Empty(t, a.Finalizers)
	require.Equal(t, map[string]string{"lockstep.dev/note": "kept"}, a.Annotations)
	require.Empty(t, a.Spec.Template.Spec.NodeName)
	require.True(t, a.Spec.Paused)
}

func TestListReadsMetadataIfAllObjectsAreHeld(t *testing.T) {
	t.Parallel()
	server := kubetest.Start(t)
	server.Set(kubetest.Pods, 10, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "a", UID: "1", ResourceVersion: "5",
	}})
	requests := make(chan string, 10)
	server.Handle(func(_ http.ResponseWriter, r *http.Request) bool {
		query := r.URL.Query()
		what := "whole"
		if strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList") {
			what = "metadata"
		}
		requests <- strings.TrimSpace(what + " " + query.Get("resourceVersionMatch") + " " + query.Get("resourceVersion"))
		return false
	})
	client, held := newClient(t, server), object.Object(nil)
	list := func() object.List {
		l, err := client.List(t.Context(), kube.Workspaces(""), object.Pod,
			func(object.Key, string) object.Object { return held })
		require.NoError(t, err)
		require.Len(t, l.Objects, 1)
		return l
	}
	held = list().Objects[0]
	require.Equal(t, "metadata", <-requests)
	require.Equal(t, "whole Exact 10", <-requests, "the same version again")
	require.Same(t, held, list().Objects[0])
	require.Equal(t, "metadata", <-requests)
	require.Empty(t, requests)
}

// TestPagesOutliveTheBufferTheyWereReadInto lists many pages, each of which is read into a buffer of another.
func TestPagesOutliveTheBufferTheyWereReadInto(t *testing.T) {
	t.Parallel()
	server := kubetest.Start(t)
	const count = 2200
	name := func(i int) string { return fmt.Sprintf("replicaset-%04d", i) }
	server.SetMany(kubetest.ReplicaSets, 10, count, func(i int) runtime.Object {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name(i), UID: types.UID(name(i)), ResourceVersion: "5",
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)}},
		}}
	})
	list, err := newClient(t, server).List(t.Context(), kube.Workspaces(""), object.ReplicaSet, holdsNothing)
	require.NoError(t, err)
	require.Len(t, list.Objects, count)
	for i, o := range list.Objects {
		decoded, err := object.Decode(o)
		require.NoError(t, err)
		m, err := meta.Accessor(decoded)
		require.NoError(t, err)
		require.Equal(t, name(i), m.GetName())
	}
}

func holdsNothing(object.Key, string) object.Object { return nil }

func TestUnreadableListsAreErrors(t *testing.T) {
	t.Parallel()
	for answer, test := range map[string]struct {
		serve http.HandlerFunc
		want  string
	}{
		"refused": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no right to list"}`)
		}, "list replicasets: no right to list"},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"kind":`)
		}, "list replicasets: read a page: unexpected EOF"},
		"of another format": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `<html>`)
		}, "list replicasets: decode a page: "},
		"of another kind": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","items":[]}`)
		}, "list replicasets: decode a page: "},
	} {
		t.Run(answer, func(t *testing.T) {
			t.Parallel()
			server := kubetest.Start(t)
			server.Set(kubetest.ReplicaSets, 10)
			server.Handle(func(w http.ResponseWriter, r *http.Request) bool {
				test.serve(w, r)
				return true
			})
			_, err := newClient(t, server).List(t.Context(), kube.Workspaces(""), object.ReplicaSet, holdsNothing)
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestLeaseIsReleasedAfterLeadReturns(t *testing.T) {
	t.Parallel()
	server := kubetest.Start(t)
	lease := leader.Config{Duration: 30 * time.Second, RenewDeadline: 20 * time.Second, RetryPeriod: 50 * time.Millisecond}
	options := kube.LeaseOptions{Namespace: "ns", Name: "watcher", Identity: "first"}
	first := newClient(t, server).NewElector(lease, options)
	options.Identity = "second"
	second := newClient(t, server).NewElector(lease, options)

	events := make(chan string, 10)
	running, stopFirst := context.WithCancel(t.Context())
	finish := make(chan struct{})
	ended := make(chan error, 2)
	go func() {
		ended <- first.Run(running, t.Context(), func(ctx, _ context.Context, tookOver bool) error {
			events <- "first leads, took over: " + strconv.FormatBool(tookOver)
			<-ctx.Done()
			<-finish
			events <- "first is done"
			return nil
		})
	}()
	require.Equal(t, "first leads, took over: false", receive(t, events))
	require.Equal(t, "first", first.Holder())
	standing, stopSecond := context.WithCancel(t.Context())
	go func() {
		ended <- second.Run(standing, t.Context(), func(ctx, _ context.Context, tookOver bool) error {
			events <- "second leads, took over: " + strconv.FormatBool(tookOver)
			<-ctx.Done()
			return nil
		})
	}()
	require.Eventually(t, func() bool { return second.Holder() == "first" }, timeout, time.Millisecond)
	stopFirst()
	close(finish)
	require.Equal(t, "first is done", receive(t, events))
	require.Equal(t, "second leads, took over: true", receive(t, events))
	stopSecond()
	require.NoError(t, receive(t, ended))
	require.NoError(t, receive(t, ended))
	require.NoError(t, first.Err())
}

func TestMissingLeaseAndNamespaceAreCreated(t *testing.T) {
	t.Parallel()
	server := kubetest.Start(t)
	lease := leader.Config{Duration: 2 * time.Second, RenewDeadline: time.Second, RetryPeriod: 50 * time.Millisecond}
	decreased := make(chan struct{}, 10)
	elector := newClient(t, server).NewElector(lease, kube.LeaseOptions{
		Namespace: "ns", Name: "watcher", Identity: "one", VersionDecreased: func() { decreased <- struct{}{} },
	})
	leading := make(chan struct{}, 10)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- elector.Run(ctx, t.Context(), func(ctx, _ context.Context, _ bool) error {
			leading <- struct{}{}
			<-ctx.Done()
			return nil
		})
	}()
	receive(t, leading)
	require.Empty(t, decreased)
	server.Rewind(0)
	server.Forget() // a new, empty cluster
	receive(t, decreased)
	require.NotEmpty(t, elector.Holder())
	stop()
	require.NoError(t, receive(t, ended))
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(timeout):
		require.Fail(t, "timed out waiting for a value")
		panic("unreachable")
	}
}
