package endpoint

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/utils/clock"

	"lockstep.internal/tools/kubelab/kubelet"
	"lockstep.internal/tools/kubelab/process"
)

const (
	// idleTimeout ends a stream on which nothing happens, as a kubelet does.
	idleTimeout = 4 * time.Hour
	// headerTimeout bounds reading the request header.
	headerTimeout = 30 * time.Second
)

// Server is the API of all kubelets of a lab.
type Server struct {
	// Client reads pods and nodes.
	Client kubernetes.Interface
	// Processes has the containers that run as processes; nil if all are simulated.
	Processes *process.Runner
	// Clock determines the length of logs.
	Clock clock.Clock
	// Log receives errors below HTTP.
	Log io.Writer
}

// Serve serves on listener until ctx ends (no error), and closes it. It returns after the last
// stream was closed. config verifies client certificates.
func (s *Server) Serve(ctx context.Context, listener net.Listener, config *tls.Config) error {
	connections := &connections{Listener: listener, open: map[net.Conn]struct{}{}}
	var streams sync.WaitGroup
	routes := s.routes()
	protocols := new(http.Protocols)
	// Streams hijack the connection, which HTTP/2 does not support.
	protocols.SetHTTP1(true)
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			streams.Add(1)
			defer streams.Done()
			routes.ServeHTTP(w, r)
		}),
		TLSConfig:         config,
		Protocols:         protocols,
		ReadHeaderTimeout: headerTimeout,
		ErrorLog:          log.New(s.Log, "kubelets' endpoint: ", log.LstdFlags),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, caller{}, c)
		},
	}
	ended := make(chan error, 1)
	go func() { ended <- server.ServeTLS(connections, "", "") }()
	var err error
	select {
	case <-ctx.Done():
		_ = server.Close()
		err = <-ended
	case err = <-ended:
	}
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("serve the kubelets' endpoint: %w", err)
	}
	// The server does not close hijacked connections.
	connections.closeAll()
	streams.Wait()
	return err
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.logs)
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		s.stream(w, r, func(r *http.Request, options *remotecommand.Options, _ Run) {
			remotecommand.ServeExec(w, r, container{input: options.Stdin}, "", "", "", r.URL.Query()["command"],
				options, idleTimeout, remotecommand.DefaultStreamCreationTimeout, remotecommand.SupportedStreamingProtocols)
		})
	})
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		s.stream(w, r, func(r *http.Request, options *remotecommand.Options, run Run) {
			remotecommand.ServeAttach(w, r, container{input: options.Stdin, follow: s.followFrom(run)}, "", "", "",
				options, idleTimeout, remotecommand.DefaultStreamCreationTimeout, remotecommand.SupportedStreamingProtocols)
		})
	})
	mux.HandleFunc("/portForward/{namespace}/{pod}", s.portForward)
	return mux
}

// stream serves exec or attach. The stream ends when the container does.
func (s *Server) stream(
	w http.ResponseWriter, r *http.Request, serve func(*http.Request, *remotecommand.Options, Run),
) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	pod, ok := s.find(w, r)
	if !ok {
		return
	}
	run, err := RunOf(pod, r.PathValue("container"), false)
	if err != nil || run.Ended != nil {
		http.Error(w, fmt.Sprintf("container not found (%q)", r.PathValue("container")), http.StatusInternalServerError)
		return
	}
	alive, release := s.alive(r.Context(), pod, &run)
	defer release()
	serve(r.WithContext(alive), options, run)
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	options, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	pod, ok := s.find(w, r)
	if !ok {
		return
	}
	alive, release := s.alive(r.Context(), pod, nil)
	defer release()
	target := forwarder(func(_ int32, stream io.ReadWriteCloser) error { return forward(alive, stream) })
	if s.hasProcess(pod) {
		address := kubelet.ProcessAddress(pod)
		target = func(port int32, stream io.ReadWriteCloser) error { return forwardTo(alive, address, port, stream) }
	}
	portforward.ServePortForward(w, r, target, pod.Name, string(pod.UID), options,
		idleTimeout, remotecommand.DefaultStreamCreationTimeout, portforward.SupportedProtocols)
}

// hasProcess reports whether a container of the pod runs as a process.
func (s *Server) hasProcess(pod *v1.Pod) bool {
	for _, c := range pod.Spec.Containers {
		if _, has := s.Processes.HasProcess(pod, c.Name, false); has {
			return true
		}
	}
	return false
}

// find returns the pod of a request, or responds 404.
func (s *Server) find(w http.ResponseWriter, r *http.Request) (*v1.Pod, bool) {
	name := r.PathValue("pod")
	pod, err := s.Client.CoreV1().Pods(r.PathValue("namespace")).Get(r.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		http.Error(w, fmt.Sprintf("pod %q does not exist", name), http.StatusNotFound)
		return nil, false
	}
	if err == nil {
		err = s.checkNode(r.Context(), pod.Spec.NodeName)
	}
	if errors.Is(err, errKubeletStopped) {
		closeConnection(r.Context())
		return nil, false
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return nil, false
	}
	return pod, true
}

func (s *Server) checkNode(ctx context.Context, name string) error {
	node, err := s.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get %s: %w", name, err)
	}
	if !kubeletRuns(node) {
		return errKubeletStopped
	}
	return nil
}

// caller is the key of the connection in the context of its requests.
type caller struct{}

// closeConnection closes the connection of a request without a response.
func closeConnection(ctx context.Context) {
	if c, ok := ctx.Value(caller{}).(net.Conn); ok {
		_ = c.Close()
	}
}

// connections is a listener that keeps track of open connections.
type connections struct {
	net.Listener

	mu   sync.Mutex
	open map[net.Conn]struct{} // nil after closeAll
}

func (c *connections) Accept() (net.Conn, error) {
	accepted, err := c.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // the server knows the listener's errors
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		return nil, errors.Join(net.ErrClosed, accepted.Close())
	}
	c.open[accepted] = struct{}{}
	return connection{Conn: accepted, of: c}, nil
}

// closeAll closes all connections and rejects new ones.
func (c *connections) closeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for open := range c.open {
		_ = open.Close()
	}
	c.open = nil
}

type connection struct {
	net.Conn

	of *connections
}

func (c connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c.Conn)
	c.of.mu.Unlock()
	return c.Conn.Close() //nolint:wrapcheck // as the connection itself
}
