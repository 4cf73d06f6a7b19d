package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// Figures of client-go over TLS and HTTP/2, with protobuf. Each client has a connection of its own.
const (
	kubeWatch = "kube_watch_events_per_s"
	kubeExec  = "kube_exec_ms"
)

// kubeCall is a request that clients send again and again.
type kubeCall struct {
	name    string
	clients int
	do      func(ctx context.Context, c *kubernetes.Clientset) error
}

func kubeCalls() []kubeCall {
	list := func(ctx context.Context, c *kubernetes.Clientset) error {
		found, err := c.CoreV1().Pods(kubeNamespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(found.Items) != kubePods {
			err = fmt.Errorf("%d pods instead of %d", len(found.Items), kubePods)
		}
		return err
	}
	get := func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.CoreV1().Pods(kubeNamespace).Get(ctx, kubePod(0), metav1.GetOptions{})
		return err //nolint:wrapcheck // who calls says what it asked
	}
	return []kubeCall{
		{"kube_list_c1_rps", 1, list},
		{"kube_list_c32_rps", 32, list},
		{"kube_get_c32_rps", 32, get},
	}
}

// kubeFigures are the names of all figures.
func kubeFigures() []string {
	names := []string{kubeWatch, kubeExec}
	for _, c := range kubeCalls() {
		names = append(names, c.name)
	}
	return names
}

func measureKube(ctx context.Context, measured Measured, size Size, ways []way) error {
	counting := turnOf(size, len(ways))
	figure := func(name string, measure func(ctx context.Context, w way) (float64, error)) error {
		if !size.wants(name) {
			return nil
		}
		took, err := compare(ctx, size.For, ways, func(ctx context.Context, w way, _ int) ([]float64, error) {
			value, err := measure(ctx, w)
			return []float64{value}, err
		})
		if err == nil {
			measured[name] = took.measurement(0)
		}
		return err
	}
	for _, call := range kubeCalls() {
		connect := func(w way, ctx context.Context) (asker, error) { return newKubeClient(ctx, w, call.do) }
		if err := figure(call.name, func(ctx context.Context, w way) (float64, error) {
			l, err := w.asks(ctx, connect, call.clients, counting/warmingPart, counting)
			return l.perSecond, err
		}); err != nil {
			return err
		}
	}
	return errors.Join(
		figure(kubeWatch, func(ctx context.Context, w way) (float64, error) {
			return w.watches(ctx, counting/warmingPart, counting)
		}),
		figure(kubeExec, func(ctx context.Context, w way) (float64, error) { return w.execs(ctx, counting) }))
}

// kubeClient is client-go with a connection of its own.
type kubeClient struct {
	*kubernetes.Clientset

	http   *http.Client
	ctx    context.Context //nolint:containedctx // ends with Close
	cancel context.CancelFunc
	do     func(ctx context.Context, c *kubernetes.Clientset) error
}

func newKubeClient(
	ctx context.Context, w way, do func(context.Context, *kubernetes.Clientset) error,
) (*kubeClient, error) {
	cfg := w.restConfig()
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", w.name, err)
	}
	set, err := kubernetes.NewForConfigAndClient(cfg, client)
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", w.name, err)
	}
	c := &kubeClient{Clientset: set, http: client, do: do}
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c, nil
}

func (w way) restConfig() *rest.Config {
	return &rest.Config{
		Host: "https://" + w.kube, BearerToken: w.token, QPS: -1, DisableCompression: true,
		TLSClientConfig: rest.TLSClientConfig{CAFile: w.caFile},
		ContentConfig: rest.ContentConfig{
			ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf,
		},
		Dial: new(net.Dialer).DialContext, // clients with a dialer do not share connections
	}
}

func (c *kubeClient) ask() error {
	if err := c.do(c.ctx, c.Clientset); err != nil {
		return fmt.Errorf("ask the API server: %w", err)
	}
	return nil
}

func (c *kubeClient) Close() error {
	c.cancel()
	c.http.CloseIdleConnections()
	return nil
}

// watches counts the events of one watch per second.
func (w way) watches(ctx context.Context, warming, counting time.Duration) (float64, error) {
	c, err := newKubeClient(ctx, w, nil)
	if err != nil {
		return 0, err
	}
	defer c.Close() //nolint:errcheck // nothing follows
	watch, err := c.CoreV1().Pods(kubeNamespace).Watch(c.ctx, metav1.ListOptions{})
	if err != nil {
		return 0, fmt.Errorf("watch through %s: %w", w.name, err)
	}
	defer watch.Stop()
	from := time.Now().Add(warming)
	until := from.Add(counting)
	count := 0
	for range watch.ResultChan() {
		now := time.Now()
		if now.After(until) {
			return float64(count) / now.Sub(from).Seconds(), nil
		}
		if now.After(from) {
			count++
		}
	}
	return 0, fmt.Errorf("watch through %s: the watch has ended", w.name)
}

// execs measures the median of commands that are executed one after the other, in milliseconds.
func (w way) execs(ctx context.Context, duration time.Duration) (float64, error) {
	const least = 5
	c, err := newKubeClient(ctx, w, nil)
	if err != nil {
		return 0, err
	}
	defer c.Close() //nolint:errcheck // nothing follows
	url := c.CoreV1().RESTClient().Post().Resource("pods").Namespace(kubeNamespace).Name(kubePod(0)).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: []string{"true"}, Stdout: true}, scheme.ParameterCodec).URL()
	var took []float64
	for began := time.Now(); len(took) < least || time.Since(began) < duration; {
		executor, err := remotecommand.NewWebSocketExecutor(w.restConfig(), http.MethodGet, url.String())
		if err != nil {
			return 0, fmt.Errorf("execute a command through %s: %w", w.name, err)
		}
		started := time.Now()
		if err := executor.StreamWithContext(c.ctx, remotecommand.StreamOptions{Stdout: io.Discard}); err != nil {
			return 0, fmt.Errorf("execute a command through %s: %w", w.name, err)
		}
		took = append(took, milliseconds(time.Since(started)))
	}
	return median(took), nil
}

// reachedKube waits until the API server answers: a relay may not know the agent yet.
func (w way) reachedKube(ctx context.Context) error {
	c, err := newKubeClient(ctx, w, kubeCalls()[0].do)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // nothing follows
	for {
		if err = c.ask(); err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}
