package kube

import (
	"sync"

	"k8s.io/apimachinery/pkg/watch"
)

// overheard is a watch whose events are heard before they are passed on.
type overheard struct {
	watch.Interface

	out     chan watch.Event
	stop    sync.Once
	stopped chan struct{}
}

func overhear(changes watch.Interface, hear func(watch.Event)) *overheard {
	o := &overheard{Interface: changes, out: make(chan watch.Event), stopped: make(chan struct{})}
	go func() {
		defer close(o.out)
		for e := range changes.ResultChan() {
			hear(e)
			select {
			case o.out <- e:
			case <-o.stopped:
				return
			}
		}
	}()
	return o
}

// ResultChan implements [watch.Interface].
func (o *overheard) ResultChan() <-chan watch.Event { return o.out }

// Stop implements [watch.Interface].
func (o *overheard) Stop() {
	o.stop.Do(func() { close(o.stopped) })
	o.Interface.Stop()
}
