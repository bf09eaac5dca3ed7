// Starts the servers of an MCP client's configuration as the client does, with the official MCP SDK:
//  node tests/conformance/mcp-wrap.mjs PACKAGES CONFIGURATION CALLS
// PACKAGES is the folder where npm installed @modelcontextprotocol/sdk. CONFIGURATION is the text of the configuration
// file, and CALLS a JSON list of [tool, arguments].
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [packages, configuration, calls] = process.argv.slice(2);
const sdk = join(packages, "node_modules/@modelcontextprotocol/sdk/dist/esm");
const load = (module) => import(pathToFileURL(join(sdk, module)).href);
const { Client } = await load("client/index.js");
const { StdioClientTransport, getDefaultEnvironment } = await load("client/stdio.js");
const { ElicitRequestSchema } = await load("types.js");

const { mcpServers, servers } = JSON.parse(configuration);
for (const [name, { command, args, env }] of Object.entries(mcpServers ?? servers)) {
  const { XDG_DATA_HOME } = process.env;
  const transport = new StdioClientTransport({ command, args, env: { ...getDefaultEnvironment(), XDG_DATA_HOME, ...env } });
  const client = new Client({ name: "a-client", version: "1" }, { capabilities: { elicitation: { form: {} } } });
  const dialogs = [];
  client.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
    dialogs.push(params.message);
    return { action: "accept", content: {} };
  });
  await client.connect(transport);
  const { tools } = await client.listTools();
  const results = [];
  for (const [tool, given] of JSON.parse(calls)) {
    results.push(await client.callTool({ name: tool, arguments: given }));
  }
  await client.close();
  console.log(JSON.stringify({ name, tools: tools.map((tool) => tool.name), dialogs, results }));
}
