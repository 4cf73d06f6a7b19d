package main

import (
	"context"
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

// kubeCall is a request that clients of client-go send again and again, with protobuf over HTTP/2 and TLS.
type kubeCall func(ctx context.Context, c kubernetes.Interface) error

// listPods expects n pods.
func listPods(n int) kubeCall {
	return func(ctx context.Context, c kubernetes.Interface) error {
		found, err := c.CoreV1().Pods(kubeNamespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(found.Items) != n {
			err = fmt.Errorf("%d pods instead of %d", len(found.Items), n)
		}
		return err
	}
}

func getPod(ctx context.Context, c kubernetes.Interface) error {
	_, err := c.CoreV1().Pods(kubeNamespace).Get(ctx, kubePod(0), metav1.GetOptions{})
	return err //nolint:wrapcheck // load wraps it
}

// calls measures calls by n clients.
func calls(n int, do kubeCall) func(context.Context, route, time.Duration) []float64 {
	return func(ctx context.Context, r route, turn time.Duration) []float64 {
		return load(ctx, r, n, turn, func() caller { return r.connectKube(ctx, do) })
	}
}

// kubeCaller is client-go with a connection of its own.
type kubeCaller struct {
	kubernetes.Interface

	http *http.Client
	do   func() error
}

func (r route) connectKube(ctx context.Context, do kubeCall) *kubeCaller {
	cfg := r.restConfig()
	client := must(rest.HTTPClientFor(cfg))
	c := &kubeCaller{Interface: must(kubernetes.NewForConfigAndClient(cfg, client)), http: client}
	c.do = func() error { return do(ctx, c) }
	return c
}

func (r route) restConfig() *rest.Config {
	return &rest.Config{
		Host: "https://" + r.kube, BearerToken: r.token, QPS: -1, DisableCompression: true,
		TLSClientConfig: rest.TLSClientConfig{CAFile: r.caFile},
		ContentConfig: rest.ContentConfig{
			ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf,
		},
		Dial: new(net.Dialer).DialContext, // clients with a dialer do not share connections
	}
}

func (c *kubeCaller) call() error { return c.do() }

// Close closes the connection.
func (c *kubeCaller) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// watchPods returns the events of one watch per second.
func watchPods(ctx context.Context, r route, turn time.Duration) []float64 {
	c := r.connectKube(ctx, nil)
	defer c.Close() //nolint:errcheck // nothing follows
	watch := must(c.CoreV1().Pods(kubeNamespace).Watch(ctx, metav1.ListOptions{}))
	defer watch.Stop()
	m := newMeter(turn)
	for range watch.ResultChan() {
		if now := time.Now(); !m.add(1, now, now) {
			return []float64{m.rate()}
		}
	}
	check(interrupted(ctx))
	check(fmt.Errorf("watch through %s: the watch has ended", r.name))
	return nil
}

// executeCommands executes commands one after the other and returns their median time.
func executeCommands(ctx context.Context, r route, turn time.Duration) []float64 {
	c := r.connectKube(ctx, nil)
	defer c.Close() //nolint:errcheck // nothing follows
	url := c.CoreV1().RESTClient().Post().Resource("pods").Namespace(kubeNamespace).Name(kubePod(0)).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: []string{"true"}, Stdout: true}, scheme.ParameterCodec).URL()
	return repeat(turn, func() {
		executor := must(remotecommand.NewWebSocketExecutor(r.restConfig(), http.MethodGet, url.String()))
		check(executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: io.Discard}))
	})
}
