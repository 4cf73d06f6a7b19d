package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/watcher/object"
)

// Handler receives what a [Watch] observes. Calls for one kind in one namespace, or in all namespaces if they share one
// watch, come one at a time; other calls are concurrent. A method must not block for long.
type Handler interface {
	// Upserted reports an object that exists in this version. The origin is [object.Changed] for a watch event,
	// [object.Initial] for the first list, and [object.Found] for a list after the watch was lost.
	Upserted(kind object.Kind, o object.Object, origin object.Origin)
	// Deleted reports an object that was deleted or lost its labels, or an [object.Revision] that
	// its workload no longer controls. It has the version of the deletion, or the last known
	// version if missed is true.
	Deleted(kind object.Kind, o object.Object, missed bool)
	// VersionDecreased reports that the cluster was restored from a backup.
	VersionDecreased(kind object.Kind)
}

// Watch is a running watch of all kinds of a scope.
type Watch struct {
	logger  *slog.Logger
	running sync.WaitGroup
	stores  []*store

	mu     sync.Mutex
	faults map[target]error // why a kind cannot be listed or watched now
}

// target is one kind in one namespace.
type target struct {
	kind      object.Kind
	namespace string
}

func (t target) String() string { return string(t.kind) + "s" + inNamespace(t.namespace) }

// Watch watches all kinds of a scope until ctx is done.
func (c *Client) Watch(ctx context.Context, scope Scope, handler Handler) (*Watch, error) {
	w := &Watch{logger: c.logger, faults: make(map[target]error)}
	ctx = c.withLogger(ctx)
	logger := klog.FromContext(ctx)
	var reflectors []*cache.Reflector
	for _, kind := range scope.kinds {
		for _, namespace := range scope.namespaces {
			src, err := c.source(kind, namespace)
			if err != nil {
				return nil, err
			}
			s := newStore(kind, scope, handler, c.logger)
			lw := w.listerWatcher(src, target{kind, namespace}, scope.labels, s)
			reflector := cache.NewReflectorWithOptions(lw, src.example, s, cache.ReflectorOptions{Logger: &logger})
			reflector.WatchListPageSize = pageSize
			reflectors = append(reflectors, reflector)
			w.stores = append(w.stores, s)
		}
	}
	for _, reflector := range reflectors {
		w.running.Go(func() { reflector.RunWithContext(ctx) })
	}
	return w, nil
}

// listerWatcher records whether requests succeed, and trims the pages of a list.
func (w *Watch) listerWatcher(src source, t target, labels string, s *store) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector = labels
			if options.Limit > 0 && options.ResourceVersion == "0" {
				options.ResourceVersion = "" // the API server's cache would ignore the limit
			}
			list, err := src.list(ctx, options)
			w.recordResult(ctx, t, "list", err)
			if err != nil {
				return nil, err
			}
			return trimmedList(list, s)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = labels
			changes, err := src.watch(ctx, options)
			if !causesRelist(err) {
				w.recordResult(ctx, t, "watch", err)
			}
			return changes, err
		},
	}, src.client)
}

// trimmedList replaces each object of a page.
func trimmedList(page runtime.Object, s *store) (runtime.Object, error) {
	head, err := meta.ListAccessor(page)
	if err != nil {
		return nil, fmt.Errorf("list %ss: %w", s.kind, err)
	}
	trimmed := &internalversion.List{ListMeta: metav1.ListMeta{
		ResourceVersion:    head.GetResourceVersion(),
		Continue:           head.GetContinue(),
		RemainingItemCount: head.GetRemainingItemCount(),
	}}
	err = meta.EachListItem(page, func(item runtime.Object) error {
		o, err := s.heldOrTrimmed(item)
		if err == nil {
			trimmed.Items = append(trimmed.Items, listItem{o})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list %ss: %w", s.kind, err)
	}
	return trimmed, nil
}

// causesRelist reports whether the reflector lists after this error: the version is too old, or the
// server or a proxy does not support streamed lists.
func causesRelist(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsInvalid(err)
}

// recordResult stores or clears the failure of a target.
func (w *Watch) recordResult(ctx context.Context, t target, verb string, err error) {
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		delete(w.faults, t)
		return
	}
	err = fmt.Errorf("%s %s: %w", verb, t, err)
	if w.faults[t] == nil {
		w.logger.WarnContext(ctx, "request to Kubernetes failed; retrying", logkey.Error(err))
	}
	w.faults[t] = err
}

// WaitForSync waits until the handler has received every object that existed when the watch started.
func (w *Watch) WaitForSync(ctx context.Context) error {
	for _, s := range w.stores {
		select {
		case <-s.synced:
		case <-ctx.Done():
			return fmt.Errorf("wait for the first list: %w", errors.Join(context.Cause(ctx), w.Err()))
		}
	}
	return nil
}

// Err returns which kinds cannot be listed or watched now, and why; nil if all can.
func (w *Watch) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	targets := slices.SortedFunc(maps.Keys(w.faults), func(a, b target) int {
		return strings.Compare(a.String(), b.String())
	})
	faults := make([]error, 0, len(targets))
	for _, t := range targets {
		faults = append(faults, w.faults[t])
	}
	return errors.Join(faults...)
}

// Wait returns when the watch has ended, after its context is done.
func (w *Watch) Wait() { w.running.Wait() }
