// Package kubetest is an API server for tests. It does what a real one does not do on demand: expired
// watches, refused lists, a cluster restored from a backup.
//
// It serves lists and watches of given objects, the same in every namespace, and stores Leases and
// namespaces. It is ready. A list has one page, except after [Server.SetMany]. A watch sends what Send is given.
package kubetest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Resources that are listed and watched.
const (
	Deployments         = "deployments"
	StatefulSets        = "statefulsets"
	DaemonSets          = "daemonsets"
	ReplicaSets         = "replicasets"
	ControllerRevisions = "controllerrevisions"
	Pods                = "pods"
)

// systemNamespace is the path of the namespace whose UID is the cluster's.
const systemNamespace = "/api/v1/namespaces/kube-system"

// Server is an API server. Its methods may be called from any goroutine.
type Server struct {
	http *httptest.Server

	mu      sync.Mutex
	lists   map[string]list
	watches map[string]map[chan change]bool
	oldest  map[string]int // watches from before are too old
	refused map[string]int // status of lists
	held    map[string]*Held
	written map[string]map[string]any
	version int
	extra   func(w http.ResponseWriter, r *http.Request) bool
}

type list struct {
	version int
	objects []runtime.Object
	many    *many
}

type change struct {
	Type   string `json:"type"`
	Object any    `json:"object"`
	ends   bool
}

// Start starts an empty server at version 1. It stops at the end of the test.
func Start(tb testing.TB) *Server {
	tb.Helper()
	s := New()
	tb.Cleanup(s.Close)
	return s
}

// New starts a server outside of a test. Close it.
func New() *Server {
	s := &Server{
		lists: make(map[string]list), watches: make(map[string]map[chan change]bool), oldest: make(map[string]int),
		refused: make(map[string]int), held: make(map[string]*Held), written: make(map[string]map[string]any), version: 1,
	}
	for resource := range listKinds() {
		s.lists[resource] = list{version: 1}
		s.watches[resource] = make(map[chan change]bool)
	}
	s.written[systemNamespace] = map[string]any{
		"apiVersion": "v1",
		"kind":       "Namespace",
		"metadata":   map[string]any{"name": "kube-system", "uid": "cluster", "resourceVersion": "1"},
	}
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	return s
}

// Close ends every watch and the server.
func (s *Server) Close() {
	s.Expire(0)
	s.http.CloseClientConnections()
	s.http.Close()
}

// Kubeconfig writes a kubeconfig that leads to the server.
func (s *Server) Kubeconfig(tb testing.TB) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	if err := s.WriteKubeconfig(path); err != nil {
		tb.Fatal(err)
	}
	return path
}

// WriteKubeconfig writes a kubeconfig that leads to the server into a file.
func (s *Server) WriteKubeconfig(path string) error {
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["c"] = &clientcmdapi.Cluster{Server: s.http.URL}
	cfg.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	cfg.CurrentContext = "c"
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	return nil
}

// Set sets the objects and the version of lists of the resource.
func (s *Server) Set(resource string, version int, objects ...runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists[resource] = list{version: version, objects: objects}
}

// Rewind sets the current version. The next write gets the version after it.
func (s *Server) Rewind(version int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
}

// Forget deletes all written objects except the identity of the cluster.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.written, func(path string, _ map[string]any) bool { return path != systemNamespace })
}

// Refuse makes lists of the resource fail with an HTTP status, 0 for none.
func (s *Server) Refuse(resource string, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused[resource] = status
}

// Held is a list that waits.
type Held struct {
	// Reached is closed when the list is requested.
	Reached chan struct{}
	release chan struct{}
}

// Release answers the list.
func (h *Held) Release() { close(h.release) }

// Hold delays the next list of the resource until it is released.
func (s *Server) Hold(resource string) *Held {
	h := &Held{Reached: make(chan struct{}), release: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[resource] = h
	return h
}

// wait waits if the list is held.
func (s *Server) wait(r *http.Request, resource string) {
	s.mu.Lock()
	h := s.held[resource]
	delete(s.held, resource)
	s.mu.Unlock()
	if h == nil {
		return
	}
	close(h.Reached)
	select {
	case <-h.release:
	case <-r.Context().Done():
	}
}

// Send sends a change (ADDED, MODIFIED, DELETED) to all watches of the resource.
func (s *Server) Send(resource, verb string, object runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for to := range s.watches[resource] {
		to <- change{Type: verb, Object: object}
	}
}

// Watching returns the number of watches of the resource.
func (s *Server) Watching(resource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watches[resource])
}

// Expire ends all watches and refuses new ones from a version below oldest.
func (s *Server) Expire(oldest int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for resource, watches := range s.watches {
		s.oldest[resource] = oldest
		for to := range watches {
			to <- change{ends: true}
		}
	}
}

// Handle passes every request to a function first, which answers it if it returns true. The
// function must be safe for concurrent use.
func (s *Server) Handle(extra func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.extra = extra
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	extra := s.extra
	s.mu.Unlock()
	if extra != nil && extra(w, r) {
		return
	}
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	s.mu.Lock()
	_, listed := s.lists[resource]
	s.mu.Unlock()
	switch {
	case r.URL.Path == "/readyz":
	case !listed:
		s.keep(w, r)
	case r.URL.Query().Get("watch") == "":
		s.wait(r, resource)
		s.list(w, r, resource)
	case r.URL.Query().Get("sendInitialEvents") != "":
		reply(w, http.StatusUnprocessableEntity, status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid))
	default:
		s.watch(w, r, resource)
	}
}

// listKinds returns the kind of a list of each resource.
func listKinds() map[string]string {
	return map[string]string{
		Deployments:         "DeploymentList",
		StatefulSets:        "StatefulSetList",
		DaemonSets:          "DaemonSetList",
		ReplicaSets:         "PartialObjectMetadataList",
		ControllerRevisions: "ControllerRevisionList",
		Pods:                "PodList",
	}
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if code := s.refused[resource]; code != 0 {
		reply(w, code, status(code, metav1.StatusReasonForbidden))
		return
	}
	l := s.lists[resource]
	if l.many != nil {
		s.mu.Unlock() // they may be many
		l.many.serve(w, r, l.version)
		s.mu.Lock()
		return
	}
	apiVersion, kind := "apps/v1", listKinds()[resource]
	if resource == Pods {
		apiVersion = "v1"
	}
	if strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList") {
		apiVersion, kind = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	items := l.objects
	if items == nil {
		items = []runtime.Object{}
	}
	reply(w, http.StatusOK, map[string]any{
		"apiVersion": apiVersion,
		"kind":       kind,
		"metadata":   map[string]any{"resourceVersion": strconv.Itoa(l.version)},
		"items":      items,
	})
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request, resource string) {
	from, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	changes := make(chan change, 100)
	s.mu.Lock()
	expired := err != nil || from < s.oldest[resource]
	if !expired {
		s.watches[resource][changes] = true
	}
	s.mu.Unlock()
	if expired {
		reply(w, http.StatusGone, status(http.StatusGone, metav1.StatusReasonExpired))
		return
	}
	defer func() {
		s.mu.Lock()
		delete(s.watches[resource], changes)
		s.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flusher, _ := w.(http.Flusher)
	for {
		flusher.Flush()
		select {
		case c := <-changes:
			if c.ends || !write(w, c) {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

// keep stores objects by path, as a leader election needs it.
func (s *Server) keep(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := r.URL.Path
	if r.Method == http.MethodGet {
		if object, ok := s.written[path]; ok {
			reply(w, http.StatusOK, object)
		} else {
			reply(w, http.StatusNotFound, status(http.StatusNotFound, metav1.StatusReasonNotFound))
		}
		return
	}
	object, err := decode(r.Body)
	if err != nil {
		reply(w, http.StatusBadRequest, status(http.StatusBadRequest, metav1.StatusReasonBadRequest))
		return
	}
	meta, _ := object["metadata"].(map[string]any)
	if r.Method == http.MethodPost {
		if _, after, found := strings.Cut(path, "/namespaces/"); found {
			name, _, _ := strings.Cut(after, "/")
			if s.written["/api/v1/namespaces/"+name] == nil {
				reply(w, http.StatusNotFound, status(http.StatusNotFound, metav1.StatusReasonNotFound))
				return
			}
		}
		path += "/" + fmt.Sprint(meta["name"])
	}
	s.version++
	meta["resourceVersion"] = strconv.Itoa(s.version)
	s.written[path] = object
	reply(w, http.StatusOK, object)
}

// decode reads an object in any encoding of Kubernetes.
func decode(body io.Reader) (map[string]any, error) {
	raw, err := io.ReadAll(body)
	if err != nil {
		return nil, fmt.Errorf("read the object: %w", err)
	}
	typed, kind, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("decode the object: %w", err)
	}
	typed.GetObjectKind().SetGroupVersionKind(*kind)
	if raw, err = json.Marshal(typed); err != nil {
		return nil, fmt.Errorf("encode the object: %w", err)
	}
	var object map[string]any
	if err := json.Unmarshal(raw, &object); err != nil {
		return nil, fmt.Errorf("decode the object: %w", err)
	}
	return object, nil
}

func status(code int, reason metav1.StatusReason) metav1.Status {
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: string(reason),
	}
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	write(w, body)
}

// write reports whether the client is still connected.
func write(w io.Writer, body any) bool {
	raw, err := json.Marshal(body)
	if err != nil {
		raw = []byte(err.Error())
	}
	_, err = w.Write(append(raw, '\n'))
	return err == nil
}
