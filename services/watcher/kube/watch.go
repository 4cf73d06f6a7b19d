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
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Handler takes what is watched. Calls for one kind in one namespace, or in all where all are watched at once, come one at a time; kinds and namespaces run
// beside each other. It must not block for long and must not change the objects.
type Handler interface {
	// Seen is called for an object that exists in this version.
	Seen(kind Kind, object metav1.Object, look Look)
	// Gone is called for an object that exists no more, or bears our labels no more, and for a [Revision] that its workload controls no more. Its version is
	// that of the deletion itself, or, where that was missed or there was none, the last one that was seen.
	Gone(kind Kind, object metav1.Object, missed bool)
	// Rewound is called when a version went back, which only a cluster restored from a backup does.
	Rewound(kind Kind)
}

// Look says how an object was seen.
type Look int8

// Looks.
const (
	// Watched: it came to be, or changed, as was watched.
	Watched Look = iota
	// Initially: it was there when watching began.
	Initially
	// Again: it was found new or changed when watching had to begin anew. Versions before it may have gone unseen.
	Again
)

// Watch is a running watch of every kind.
type Watch struct {
	logger  *slog.Logger
	running sync.WaitGroup
	synced  []cache.InformerSynced

	mu    sync.Mutex
	fault map[place]error // why a kind cannot be listed or watched now
}

// place is what one informer watches.
type place struct {
	kind      Kind
	namespace string
}

func (p place) String() string { return string(p.kind) + "s" + within(p.namespace) }

// Watch watches all kinds of a scope until ctx is done.
func (c *Client) Watch(ctx context.Context, scope Scope, handler Handler) (*Watch, error) {
	w := &Watch{logger: c.logger, fault: make(map[place]error)}
	ctx = c.logged(ctx)
	logger := klog.FromContext(ctx)
	var controllers []cache.Controller
	for _, kind := range scope.kinds {
		for _, namespace := range scope.namespaces {
			src, err := c.source(kind, namespace)
			if err != nil {
				return nil, err
			}
			told := &adapter{kind: kind, to: handler, logger: c.logger}
			_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
				Logger:        &logger,
				ListerWatcher: w.observed(src, place{kind, namespace}, scope.labels, told),
				ObjectType:    src.example,
				Handler:       told,
				Transform:     scope.trim,
			})
			controllers = append(controllers, controller)
			w.synced = append(w.synced, controller.HasSynced)
		}
	}
	for _, controller := range controllers {
		w.running.Go(func() { controller.RunWithContext(ctx) })
	}
	return w, nil
}

// observed remembers of each request whether it succeeded, and lets the adapter know what was listed.
func (w *Watch) observed(src source, at place, labels string, told *adapter) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector = labels
			list, err := src.list(ctx, options)
			w.note(ctx, at, "list", err)
			if err == nil {
				told.listed(list)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = labels
			changes, err := src.watch(ctx, options)
			if !answerable(err) {
				w.note(ctx, at, "watch", err)
			}
			if err == nil && options.SendInitialEvents != nil && *options.SendInitialEvents {
				changes = overhear(changes, told.heard)
			}
			return changes, err
		},
	}, src.client)
}

// answerable tells errors that the informer answers by itself, by listing instead: the version is too old, and the server or a proxy before it
// does not know lists that come as a watch.
func answerable(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsInvalid(err)
}

func (w *Watch) note(ctx context.Context, at place, verb string, err error) {
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("cannot %s %s: %w", verb, at, err)
		if w.fault[at] == nil {
			w.logger.WarnContext(ctx, "Kubernetes refuses, trying on", slog.String("error", err.Error()))
		}
	}
	if w.fault[at] = err; err == nil {
		delete(w.fault, at)
	}
}

// Synced waits until every object that was there when watching began has been told to the handler.
func (w *Watch) Synced(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), w.synced...) {
		return fmt.Errorf("wait for the first listing: %w", errors.Join(context.Cause(ctx), w.Err()))
	}
	return nil
}

// Err says which kinds cannot be listed or watched at the moment, and why; nil when all can.
func (w *Watch) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	broken := slices.SortedFunc(maps.Keys(w.fault), func(a, b place) int { return strings.Compare(a.String(), b.String()) })
	faults := make([]error, 0, len(broken))
	for _, at := range broken {
		faults = append(faults, w.fault[at])
	}
	return errors.Join(faults...)
}

// Wait returns when watching has ended, after the context of Watch is done.
func (w *Watch) Wait() { w.running.Wait() }

// adapter turns an informer's calls into those of a Handler.
type adapter struct {
	kind   Kind
	to     Handler
	logger *slog.Logger

	// listing is the version of the last listing: what was watched before is told by then, so what is not above it comes from there.
	listing atomic.Pointer[string]
}

// listed is told of a listing before its objects are.
func (a *adapter) listed(list runtime.Object) {
	if l, err := meta.ListAccessor(list); err == nil {
		a.listing.Store(new(l.GetResourceVersion()))
	}
}

// heard is told of the events of a listing that comes as a watch; a bookmark ends it.
func (a *adapter) heard(e watch.Event) {
	if e.Type == watch.Bookmark {
		if o, err := meta.Accessor(e.Object); err == nil && o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			a.listing.Store(new(o.GetResourceVersion()))
		}
	}
}

// look tells what was found in a listing from what was watched.
func (a *adapter) look(o metav1.Object) Look {
	listing := a.listing.Load()
	if listing == nil {
		return Watched
	}
	if order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), *listing); err != nil || order > 0 {
		return Watched
	}
	return Again
}

func (a *adapter) OnAdd(object any, initial bool) {
	o := a.object(object)
	switch {
	case o == nil:
	case initial:
		a.to.Seen(a.kind, o, Initially)
	default:
		a.to.Seen(a.kind, o, a.look(o))
	}
}

func (a *adapter) OnUpdate(before, after any) {
	old, now := a.object(before), a.object(after)
	if old == nil || now == nil {
		return
	}
	if order, err := resourceversion.CompareResourceVersion(old.GetResourceVersion(), now.GetResourceVersion()); err == nil && order > 0 {
		a.to.Rewound(a.kind)
	}
	r, isRevision := now.(*Revision)
	was, wasRevision := old.(*Revision)
	isRevision = isRevision && wasRevision
	if isRevision && r.Same(was) {
		return
	}
	// Deleted and created anew between two looks: the informer sees one object by its name.
	if old.GetUID() != now.GetUID() || isRevision && r.Owner != was.Owner {
		a.to.Gone(a.kind, old, true)
	}
	look := Watched
	if old.GetResourceVersion() != now.GetResourceVersion() {
		look = a.look(now)
	}
	a.to.Seen(a.kind, now, look)
}

func (a *adapter) OnDelete(object any) {
	last, missed := object.(cache.DeletedFinalStateUnknown)
	if missed {
		object = last.Obj
	}
	if o := a.object(object); o != nil {
		a.to.Gone(a.kind, o, missed)
	}
}

func (a *adapter) object(object any) metav1.Object {
	o, err := meta.Accessor(object)
	if err != nil {
		a.logger.Error("the informer returned no object", slog.String("kind", string(a.kind)), slog.String("error", err.Error()))
		return nil
	}
	return o
}
