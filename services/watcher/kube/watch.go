package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Handler takes what is watched. Calls for one kind come one at a time; kinds run beside each other. It must not block for long and
// must not change the objects.
type Handler interface {
	// Seen is called for an object that exists in this version. Initial tells that it was there when watching began.
	Seen(kind Kind, object metav1.Object, initial bool)
	// Gone is called for an object that exists no more, or bears our labels no more. Its version is that of the deletion itself, or, where
	// that was missed, the last one that was seen.
	Gone(kind Kind, object metav1.Object, missed bool)
	// Rewound is called when a version went back, which only a cluster restored from a backup does.
	Rewound(kind Kind)
}

// Watch is a running watch of every kind.
type Watch struct {
	logger  *slog.Logger
	running sync.WaitGroup
	synced  []cache.InformerSynced

	mu    sync.Mutex
	fault map[Kind]error // why a kind cannot be listed or watched now
}

// Watch watches all kinds in every namespace, as far as the label selector matches, until ctx is done.
func (c *Client) Watch(ctx context.Context, selector string, handler Handler) (*Watch, error) {
	w := &Watch{logger: c.logger, fault: make(map[Kind]error)}
	ctx = c.logged(ctx)
	logger := klog.FromContext(ctx)
	var controllers []cache.Controller
	for _, kind := range Kinds() {
		src, err := c.source(kind)
		if err != nil {
			return nil, err
		}
		_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
			Logger:        &logger,
			ListerWatcher: w.observed(src, selector),
			ObjectType:    src.example,
			Handler:       &adapter{kind: kind, to: handler, logger: c.logger},
			Transform:     trim,
		})
		controllers = append(controllers, controller)
		w.synced = append(w.synced, controller.HasSynced)
	}
	for _, controller := range controllers {
		w.running.Go(func() { controller.RunWithContext(ctx) })
	}
	return w, nil
}

// observed remembers of each request whether it succeeded.
func (w *Watch) observed(src source, selector string) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector = selector
			list, err := src.list(ctx, options)
			w.note(ctx, src.kind, "list", err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = selector
			changes, err := src.watch(ctx, options)
			if !answerable(err) {
				w.note(ctx, src.kind, "watch", err)
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

func (w *Watch) note(ctx context.Context, kind Kind, verb string, err error) {
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("cannot %s %ss: %w", verb, kind, err)
		if w.fault[kind] == nil {
			w.logger.WarnContext(ctx, "Kubernetes refuses, trying on", slog.String("error", err.Error()))
		}
	}
	w.fault[kind] = err
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
	faults := make([]error, 0, len(w.fault))
	for _, kind := range Kinds() {
		faults = append(faults, w.fault[kind])
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
}

func (a *adapter) OnAdd(object any, initial bool) {
	if o := a.object(object); o != nil {
		a.to.Seen(a.kind, o, initial)
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
	// Deleted and created anew between two looks: the informer sees one object by its name.
	if old.GetUID() != now.GetUID() {
		a.to.Gone(a.kind, old, true)
	}
	a.to.Seen(a.kind, now, false)
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
