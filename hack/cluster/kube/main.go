// Command kube links what the tests need of a real Kubernetes into one binary: etcd, kube-apiserver,
// kube-controller-manager, kubectl and helm. The part is chosen by the name it is called by, or by the first argument.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kcm "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func command(build func() *cobra.Command) func([]string) int {
	return func([]string) int { return cli.Run(build()) }
}

func main() {
	parts := map[string]func([]string) int{
		"etcd":                    func(args []string) int { etcdmain.Main(args); return 0 },
		"kube-apiserver":          command(func() *cobra.Command { return apiserver.NewAPIServerCommand() }),
		"kube-controller-manager": command(func() *cobra.Command { return kcm.NewControllerManagerCommand() }),
		"kubectl":                 command(func() *cobra.Command { return kubectl.NewDefaultKubectlCommand() }),
		"helm":                    helm,
	}
	part := filepath.Base(os.Args[0])
	if parts[part] == nil && len(os.Args) > 1 {
		part = os.Args[1]
		os.Args = append([]string{part}, os.Args[2:]...)
	}
	run := parts[part]
	if run == nil {
		fmt.Fprintln(os.Stderr, "usage: kube etcd|kube-apiserver|kube-controller-manager|kubectl|helm [flags]")
		os.Exit(2)
	}
	os.Exit(run(os.Args))
}
