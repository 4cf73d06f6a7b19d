package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	defaultPods   = 500
	kubeNamespace = "bench"
)

func kubePod(n int) string { return fmt.Sprintf("pod-%04d", n) }

// apiServer is a stand-in for the Kubernetes API server. Its responses are encoded once, so that relays are
// compared and not the encoding: lists and single pods, a watch that sends events as fast as it can, and an exec
// that ends at once.
func apiServer(pods int) (http.Handler, error) {
	list := &corev1.PodList{TypeMeta: typeMeta("PodList"), ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	for n := range pods {
		list.Items = append(list.Items, podOf(n))
	}
	pod := podOf(0)
	pod.TypeMeta = typeMeta("Pod")
	var allPods, onePod bytes.Buffer
	for to, object := range map[*bytes.Buffer]runtime.Object{&allPods: list, &onePod: &pod} {
		if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(object, to); err != nil {
			return nil, fmt.Errorf("encode a %T: %w", object, err)
		}
	}
	event, err := (&metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Raw: onePod.Bytes()}}).Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode an event: %w", err)
	}
	event = append(binary.BigEndian.AppendUint32(nil, uint32(len(event))), event...)
	const path = "/api/v1/namespaces/" + kubeNamespace + "/pods"
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			writeProtobuf(w, allPods.Bytes())
			return
		}
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
		for flush := http.NewResponseController(w).Flush; r.Context().Err() == nil; {
			if _, err := w.Write(event); err != nil || flush() != nil {
				return
			}
		}
	})
	mux.HandleFunc(path+"/{name}", func(w http.ResponseWriter, _ *http.Request) { writeProtobuf(w, onePod.Bytes()) })
	mux.HandleFunc(path+"/{name}/exec", execute)
	return mux, nil
}

func typeMeta(kind string) metav1.TypeMeta { return metav1.TypeMeta{APIVersion: "v1", Kind: kind} }

func writeProtobuf(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	_, _ = w.Write(body)
}

// podOf is a pod of about 1.5 KB.
func podOf(n int) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: kubePod(n), Namespace: kubeNamespace, UID: "0", ResourceVersion: "1",
			Labels: map[string]string{"app": "bench"}, Annotations: map[string]string{"noise": strings.Repeat("x", 1200)},
		},
		Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{
			Name: "main", Image: "registry.example/bench:1", Command: []string{"sleep"},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", HostIP: "10.0.0.2"},
	}
}

// execute answers like a command that prints a line and exits: messages of channels 1, output, and 3, status.
func execute(w http.ResponseWriter, r *http.Request) {
	upgrader := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // the upgrader has answered
	}
	defer conn.Close() //nolint:errcheck // it is over
	for _, message := range []string{"\x01done\n", "\x03" + `{"metadata":{},"status":"Success"}`} {
		if conn.WriteMessage(websocket.BinaryMessage, []byte(message)) != nil {
			return
		}
	}
	closing := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	if conn.WriteMessage(websocket.CloseMessage, closing) == nil {
		_, _, _ = conn.ReadMessage() // the client closes, too
	}
}
